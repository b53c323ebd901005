//! The storage alone, on this machine's kernel. Needs root, FUSE and loop devices.

use std::path::Path;

use testbed::real::Binaries;
use testbed::real::binaries::Tool;
use testbed::storage::{probe, sanity};

const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");
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

#[test]
fn the_driver_passes_csi_sanity() {
    let binaries = Binaries::provide(&[Tool::CsiSanity]).expect("csi-sanity can be built");
    let csi_sanity = binaries.path("csi-sanity").expect("it was asked for");
    match sanity::run(Path::new(STORAGE), csi_sanity) {
        Ok(said) => println!("{said}"),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_fenced_writer_loses_nothing_and_spoils_nothing() {
    match probe::hand_over(Path::new(STORAGE), Path::new(WORKLOAD), true).await {
        Ok(seen) => {
            println!("{}", seen.report);
            assert!(seen.report.is_clean(), "{}", seen.report);
            assert!(seen.report.refused() > 0, "the fence was not needed");
            assert_eq!(seen.report.handovers().count(), 2);
            assert_eq!(seen.losses, [], "{:?}", seen.runs);
        }
        Err(error) => panic!("{error}"),
    }
}

/// The control: both judges must see what an array does that only says that it fences.
#[tokio::test]
async fn a_fence_without_effect_is_found_by_ledger_and_workload() {
    match probe::hand_over(Path::new(STORAGE), Path::new(WORKLOAD), false).await {
        Ok(seen) => {
            println!("{}", seen.report);
            assert!(!seen.report.is_clean(), "{}", seen.report);
            assert_ne!(seen.losses, [], "{:?}", seen.runs);
        }
        Err(error) => panic!("{error}"),
    }
}
