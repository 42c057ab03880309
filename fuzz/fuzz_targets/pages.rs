//! cargo-fuzz's source to `fuzz/targets/pages.rs`.
#![no_main]

#[path = "../targets/pages.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::pages(data));
