//! cargo-fuzz's source to `fuzz/targets/fnmatch.rs`.
#![no_main]

#[path = "../targets/fnmatch.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::fnmatch(data));
