//! cargo-fuzz's source to `fuzz/targets/nesting.rs`.
#![no_main]

#[path = "../targets/nesting.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::nesting(data));
