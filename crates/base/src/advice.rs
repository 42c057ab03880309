//! What an administrator can do, for errors of several parts that have the same remedy.

/// A thread or a process cannot be started.
pub const TOO_FEW_TASKS: &str = "raise TasksMax of the unit, or the limit of processes of its user";
/// No file or socket can be opened any more. Also why the runtime of an event loop cannot be built.
pub const TOO_FEW_FILES: &str = "raise LimitNOFILE of the unit";
/// The unit lets the daemon write to its own directories only.
pub const WRITABLE_DIRECTORY: &str = "name the directory in a line `ReadWritePaths=DIR` below [Service] (`systemctl edit saltcellar`)";
