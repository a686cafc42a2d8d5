//! A secret that each process draws anew and no sender can know. Bytes that senders choose are hashed with it before anything is
//! left out because of its hash. So nobody can make the store drop another's piece by sending one with the same hash.
//!
//! Nothing made with the secret is stored: stamps are computed again from the stored pieces. Stored hashes need no secret: a
//! checksum detects damage, not malice, and two terms with the same hash only make a search read a trace and reject it.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_128_with_secret};

/// Words of xxh3's secret. All of them are drawn, because from a 64-bit seed xxh3 would derive words that depend on each other.
const WORDS: usize = 24;

/// The secret.
pub(super) struct Secret([u8; WORDS * 8]);

impl Secret {
    /// The secret of this process.
    pub(super) fn of_process() -> &'static Secret {
        static SECRET: LazyLock<Secret> = LazyLock::new(Secret::drawn);
        &SECRET
    }

    /// Draws a secret. The key of the standard library's hash comes from the system's random numbers, so nobody can predict the
    /// hashes of a row of numbers.
    fn drawn() -> Secret {
        let random = RandomState::new();
        let mut bytes = [0; WORDS * 8];
        for (number, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *word = random.hash_one(number).to_ne_bytes();
        }
        Secret(bytes)
    }

    /// The stamp that stands for these bytes.
    pub(super) fn stamp(&self, bytes: &[u8]) -> u128 {
        xxh3_128_with_secret(bytes, &self.0)
    }

    /// A shorter stamp, for use together with other numbers.
    pub(super) fn half_stamp(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_secret(bytes, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_128;

    #[test]
    fn equal_bytes_have_equal_stamps_only_under_one_secret() {
        let secrets = [Secret::drawn(), Secret::drawn()];
        for length in [0, 1, 3, 8, 16, 17, 24, 128, 129, 240, 241, 1024, 5000] {
            let bytes = vec![b'a'; length];
            let [one, other] =
                secrets.each_ref().map(|secret| (secret.stamp(&bytes), secret.half_stamp(&bytes)));
            assert!(one.0 != other.0 && one.1 != other.1, "{length} bytes");
            assert_eq!(one, (secrets[0].stamp(&bytes), secrets[0].half_stamp(&bytes)));
        }
    }

    /// For 32 bytes, xxh3 multiplies the first two words, after subtracting a word of its secret from each, and also adds them.
    /// Anybody who knows the secret words can make the product zero in many ways with the same sum.
    #[test]
    fn stamps_differ_where_the_default_secret_collides() {
        const USUAL: [u64; 2] = [0xbe4b_a423_396c_feb8, 0x1cad_21f7_2c81_017c];
        let bytes = |first: u64, second: u64| [first, second, 3, 4].map(u64::to_le_bytes).concat();
        let (one, other) = (bytes(USUAL[0], USUAL[1] + 5), bytes(USUAL[0] + 5, USUAL[1]));
        assert!(one != other && xxh3_128(&one) == xxh3_128(&other));
        let secret = Secret::of_process();
        assert!(secret.stamp(&one) != secret.stamp(&other));
    }
}
