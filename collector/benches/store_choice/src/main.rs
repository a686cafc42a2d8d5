//! Measures three embedded stores under the load of the collector: durable commits of batches of span pieces.
//!
//! One commit is what a group commit sees: `SPANS` pieces of `SPANS / 17` new traces. A piece takes one row of about
//! 300 bytes; every trace besides takes 6 rows of seen identities, 6 of services, 7 of the time index and a summary.
//! Then every read is of one whole trace by its prefix, in random order.
//!
//! `cargo run --release -- redb|fjall|lmdb [commits] [spans]`, once per store; the data is put under `$TMPDIR`.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Row = (Vec<u8>, Vec<u8>);

const SPANS_PER_TRACE: usize = 17;

trait Store {
    fn commit(&mut self, rows: &[Row]) -> Result<()>;
    fn count_prefix(&self, prefix: &[u8]) -> Result<usize>;
}

struct Redb(redb::Database);
const ROWS: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("rows");

impl Store for Redb {
    fn commit(&mut self, rows: &[Row]) -> Result<()> {
        let transaction = self.0.begin_write()?;
        {
            let mut table = transaction.open_table(ROWS)?;
            for (key, value) in rows {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn count_prefix(&self, prefix: &[u8]) -> Result<usize> {
        use redb::ReadableDatabase;
        let transaction = self.0.begin_read()?;
        let table = transaction.open_table(ROWS)?;
        let mut found = 0;
        for row in table.range(prefix..)? {
            if !row?.0.value().starts_with(prefix) {
                break;
            }
            found += 1;
        }
        Ok(found)
    }
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Store for Fjall {
    fn commit(&mut self, rows: &[Row]) -> Result<()> {
        let mut batch = self.0.batch().durability(Some(fjall::PersistMode::SyncData));
        for (key, value) in rows {
            batch.insert(&self.1, key.clone(), value.clone());
        }
        batch.commit()?;
        Ok(())
    }

    fn count_prefix(&self, prefix: &[u8]) -> Result<usize> {
        let mut found = 0;
        for row in self.1.prefix(prefix) {
            row.into_inner()?;
            found += 1;
        }
        Ok(found)
    }
}

struct Lmdb(heed::Env, heed::Database<heed::types::Bytes, heed::types::Bytes>);

impl Store for Lmdb {
    fn commit(&mut self, rows: &[Row]) -> Result<()> {
        let mut transaction = self.0.write_txn()?;
        for (key, value) in rows {
            self.1.put(&mut transaction, key, value)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn count_prefix(&self, prefix: &[u8]) -> Result<usize> {
        let transaction = self.0.read_txn()?;
        let mut found = 0;
        for row in self.1.prefix_iter(&transaction, prefix)? {
            row?;
            found += 1;
        }
        Ok(found)
    }
}

fn open(name: &str, folder: &Path) -> Result<Box<dyn Store>> {
    Ok(match name {
        "redb" => {
            Box::new(Redb(redb::Database::builder().set_cache_size(256 << 20).create(folder.join("s"))?))
        }
        "fjall" => {
            let database = fjall::Database::builder(folder).cache_size(256 << 20).open()?;
            let keyspace = database.keyspace("rows", fjall::KeyspaceCreateOptions::default)?;
            Box::new(Fjall(database, keyspace))
        }
        "lmdb" => {
            // SAFETY: no other process opens this fresh temporary folder.
            let env = unsafe { heed::EnvOpenOptions::new().map_size(64 << 30).open(folder)? };
            let mut transaction = env.write_txn()?;
            let database = env.create_database(&mut transaction, None)?;
            transaction.commit()?;
            Box::new(Lmdb(env, database))
        }
        other => return Err(format!("no store is called {other}").into()),
    })
}

fn key(trace: &[u8; 16], kind: u8, rest: &[u8]) -> Vec<u8> {
    [&[b'T'], &trace[..], &[kind], rest].concat()
}

fn trace_rows(random: &mut SmallRng, now: u64, sequence: &mut u64, rows: &mut Vec<Row>) -> [u8; 16] {
    let mut trace = [0; 16];
    random.fill_bytes(&mut trace[..8]);
    rows.push((key(&trace, 0, &[]), vec![7; 40]));
    for service in 0..6_u64 {
        rows.push((key(&trace, 1, &[&[1; 10], &service.to_be_bytes()[..]].concat()), vec![3; 36]));
        rows.push((key(&trace, 2, &service.to_be_bytes()), Vec::new()));
        let by_time = [&[b'I'], &service.to_be_bytes()[..], &(!now).to_be_bytes(), &trace].concat();
        rows.push((by_time, Vec::new()));
    }
    rows.push(([&[b'A'], &(!now).to_be_bytes()[..], &trace].concat(), Vec::new()));
    for _ in 0..SPANS_PER_TRACE {
        *sequence += 1;
        let mut piece = vec![0; 200];
        random.fill_bytes(&mut piece);
        piece.resize(300, 5);
        rows.push((key(&trace, 3, &sequence.to_be_bytes()), piece));
    }
    trace
}

fn bytes_under(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { bytes_under(&entry.path())? } else { meta.blocks() * 512 };
    }
    Ok(bytes)
}

fn percentile(sorted: &[Duration], p: usize) -> Duration {
    sorted[(sorted.len() * p / 100).min(sorted.len() - 1)]
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("name a store: redb, fjall or lmdb")?;
    let commits: usize = arguments.next().map_or(Ok(400), |a| a.parse())?;
    let spans: usize = arguments.next().map_or(Ok(1700), |a| a.parse())?;
    let folder = tempfile::tempdir()?;
    let mut store = open(&name, folder.path())?;
    let mut random = SmallRng::seed_from_u64(1);
    let (mut traces, mut times, mut sequence, mut payload) = (Vec::new(), Vec::new(), 0, 0);
    for commit in 0..commits {
        let mut rows = Vec::new();
        for _ in 0..spans / SPANS_PER_TRACE {
            traces.push(trace_rows(&mut random, commit as u64 * 1_000_000, &mut sequence, &mut rows));
        }
        payload += rows.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        let start = Instant::now();
        store.commit(&rows)?;
        times.push(start.elapsed());
    }
    let total: Duration = times.iter().sum();
    times.sort();
    let start = Instant::now();
    let reads = 20_000;
    for _ in 0..reads {
        let trace = traces[random.random_range(0..traces.len())];
        let found = store.count_prefix(&key(&trace, 3, &[]))?;
        assert_eq!(found, SPANS_PER_TRACE);
    }
    let read_us = start.elapsed().as_micros() as f64 / f64::from(reads);
    drop(store);
    let start = Instant::now();
    let store = open(&name, folder.path())?;
    let open_ms = start.elapsed().as_millis();
    assert_eq!(store.count_prefix(&key(&traces[0], 3, &[]))?, SPANS_PER_TRACE);
    println!(
        "{name:6} {:8.0} spans/s  commit p50 {:5.1} ms p99 {:6.1} ms max {:6.1} ms  read {read_us:6.1} us/trace  \
         reopen {open_ms} ms  disk/payload {:.2}",
        sequence as f64 / total.as_secs_f64(),
        percentile(&times, 50).as_secs_f64() * 1e3,
        percentile(&times, 99).as_secs_f64() * 1e3,
        times[times.len() - 1].as_secs_f64() * 1e3,
        bytes_under(folder.path())? as f64 / payload as f64,
    );
    Ok(())
}
