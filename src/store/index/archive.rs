//! Small records of the store as rkyv archives: validated where they lie, never trusted.

use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

/// Archives a record.
pub(crate) fn write<T>(record: &T) -> std::io::Result<AlignedVec>
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
{
    rkyv::to_bytes::<Error>(record).map_err(std::io::Error::other)
}

/// Reads an archive; `None` if it is malformed.
pub(crate) fn read<T>(bytes: &[u8]) -> Option<T>
where
    T: Archive,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Error>>,
    T::Archived: Deserialize<T, HighDeserializer<Error>>,
{
    // Bytes from a page or from sled lie at any address; an archive is read at an aligned one.
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    rkyv::from_bytes::<T, Error>(&aligned).ok()
}
