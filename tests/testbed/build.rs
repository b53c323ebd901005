//! The servers of the wire formats that podmon is a client of, and the kubelet's plugin registration.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(
        [
            "csi.proto",
            "cri.proto",
            "podmon.proto",
            "registration.proto",
        ],
        ["../../proto", "proto"],
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
