//! The limits of a store, which its owner may set.

use saltcellar_base::limits::{
    DEDUPE_WINDOW, NUMBERS_AHEAD, PIN_BYTES_MAX, SEGMENT_BYTES, SEGMENT_ENTRIES_MAX,
    SETTINGS_GROWTH,
};
use saltcellar_model::Durability;

/// Limits of segments, durability, and sizes of in-memory structures.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// When an entry is acknowledged.
    pub durability: Durability,
    /// Size of a segment's log in bytes.
    pub segment_bytes_max: u64,
    /// Entries of a segment.
    pub segment_entries_max: u64,
    /// Fingerprints per generation of the duplicate memory.
    pub dedupe_window: usize,
    /// Sequence numbers reserved at a time.
    pub numbers_ahead: u64,
    /// Bytes on disk that pinned consumers keep per class, beyond its own limits.
    pub pin_bytes_max: u64,
    /// Growth of a segment of the settings, in addition to twice its snapshot.
    pub settings_growth: u64,
}

impl Limits {
    /// The limits without a configuration.
    pub const DEFAULT: Self = Self {
        durability: Durability::Durable,
        segment_bytes_max: SEGMENT_BYTES,
        segment_entries_max: SEGMENT_ENTRIES_MAX,
        dedupe_window: DEDUPE_WINDOW,
        numbers_ahead: NUMBERS_AHEAD,
        pin_bytes_max: PIN_BYTES_MAX,
        settings_growth: SETTINGS_GROWTH,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
