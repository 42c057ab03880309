//! The umask of the process: what it creates is closed to whom the mask names.

/// Adds `mask` to the umask of the process.
pub fn restrict(mask: u32) {
    let mask = rustix::fs::Mode::from_raw_mode(mask);
    let inherited = rustix::process::umask(mask);
    rustix::process::umask(inherited | mask);
}
