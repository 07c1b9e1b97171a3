//! Compiles `proto/` with a protobuf compiler in Rust, so that no `protoc` has to be installed.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new("../../../proto");
    let files = ["signed", "control", "worker"].map(|name| root.join(format!("fairlead/v1/{name}.proto")));
    println!("cargo::rerun-if-changed={}", root.display());
    let descriptors = protox::compile(&files, [root])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".fairlead.v1")
        .compile_fds(descriptors)?;
    Ok(())
}
