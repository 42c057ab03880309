//! cargo-fuzz's source to `fuzz/targets/spill.rs`.
#![no_main]

#[path = "../targets/spill.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::spill(data));
