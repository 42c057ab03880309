//! cargo-fuzz's source to `fuzz/targets/signed_batch.rs`.
#![no_main]

#[path = "../targets/signed_batch.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::signed_batch(data));
