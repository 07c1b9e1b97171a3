//! Tells the code which machine it runs on: the fuzz targets are built for it by name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    println!("cargo::rustc-env=XTASK_ARCH={arch}");
}
