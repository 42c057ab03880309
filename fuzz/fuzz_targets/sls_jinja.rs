//! cargo-fuzz's source to `fuzz/targets/sls_jinja.rs`.
#![no_main]

#[path = "../targets/sls_jinja.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::sls_jinja(data));
