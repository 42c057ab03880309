//! cargo-fuzz's door to `fuzz/targets/block.rs`.
#![no_main]

#[path = "../targets/block.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::block(data));
