//! The `saltcellar` program, a thin wrapper around [`saltcellar::cli`].

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    saltcellar::cli::run(std::env::args_os())
}
