//! The storage alone, on this machine's kernel. Needs root, FUSE and loop devices.

use std::path::Path;

use testbed::storage::probe;

const STORAGE: &str = env!("CARGO_BIN_EXE_storage");

#[tokio::test]
async fn a_revoke_ends_all_writing_and_nothing_is_left() {
    match probe::fence(Path::new(STORAGE)).await {
        Ok(report) => println!("{report}"),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_power_loss_leaves_nothing_behind() {
    if let Err(error) = probe::power_off(Path::new(STORAGE)).await {
        panic!("{error}");
    }
}
