//! The `saltcellar` program: everything it does is in the library, see `cli`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    saltcellar::cli::run(std::env::args_os())
}
