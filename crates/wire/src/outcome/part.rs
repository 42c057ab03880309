//! One function of a run, of which a job may have several.

/// One function of a run.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The function.
    pub fun: &'a str,
    /// Its return value, as msgpack.
    pub value: Option<&'a [u8]>,
    /// Its exit code, as msgpack.
    pub retcode: Option<&'a [u8]>,
}
