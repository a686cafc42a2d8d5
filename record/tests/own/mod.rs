//! Records in cells as a producer's sequence writes them.

use blkin_record::{
    ADDRESS_CELL, CELL_BYTES, CELLS_GRAINS, CELLS_TAIL_BYTES, GRAIN_BYTES, KEY_CELLS, NAME_CELL,
    SERVICE_CELL, Stamp, cells_traits,
};

/// An event whose texts are not interned.
#[derive(Clone, Debug)]
pub(crate) struct InCells {
    pub(crate) ids: [u64; 3],
    pub(crate) name: Vec<u8>,
    pub(crate) ip: Vec<u8>,
    pub(crate) port: u16,
    pub(crate) service: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) level: u8,
    pub(crate) time: u64,
}

impl InCells {
    pub(crate) fn encode(&self, position: u64, ordinal: u64, cookie: u32) -> Vec<u8> {
        // Undefined words may hold any bytes.
        let mut raw = vec![0xee; CELLS_GRAINS * GRAIN_BYTES];
        let mut put = |index: usize, word: u64| raw[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
        put(0, Stamp::head(position, CELLS_GRAINS, cookie).0);
        put(1, self.time);
        for (index, id) in self.ids.into_iter().enumerate() {
            put(2 + index, id);
        }
        put(5, 0);
        put(6, u64::from(self.port) | u64::from(cells_traits(self.level)) << 32);
        put(7, ordinal | (CELLS_TAIL_BYTES as u64) << 32);
        for index in 1..CELLS_GRAINS {
            put(index * GRAIN_BYTES / 8, Stamp::continuation(position + index as u64, index, cookie).0);
        }
        let texts = [
            (NAME_CELL, 1, &self.name),
            (ADDRESS_CELL, 1, &self.ip),
            (SERVICE_CELL, 1, &self.service),
            (KEY_CELLS, 2, &self.key),
        ];
        for (at, cells, text) in texts {
            raw[at..at + cells * CELL_BYTES].fill(0);
            raw[at..at + text.len()].copy_from_slice(text);
        }
        raw
    }
}
