//! The annotation record: layout, encode, decode, version.
