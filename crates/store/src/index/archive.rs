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

/// Passes an archive to `look`, in place; `None` if it is malformed, or if `look` finds it so.
pub(crate) fn look<T, R>(bytes: &[u8], look: impl FnOnce(&T::Archived) -> Option<R>) -> Option<R>
where
    T: Archive,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Error>>,
{
    // Bytes from a page or from sled lie at any address; an archive is read at an aligned one.
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    look(rkyv::access::<T::Archived, Error>(&aligned).ok()?)
}

/// A record, or a part of one, as a value.
pub(crate) fn value<T: Archive>(archived: &T::Archived) -> Option<T>
where
    T::Archived: Deserialize<T, HighDeserializer<Error>>,
{
    rkyv::deserialize::<T, Error>(archived).ok()
}
