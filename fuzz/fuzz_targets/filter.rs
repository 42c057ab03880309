//! cargo-fuzz's source to `fuzz/targets/filter.rs`.
#![no_main]

#[path = "../targets/filter.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::filter(data));
