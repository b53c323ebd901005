//! Array, data path and CSI driver of the testbed.

fn main() -> std::process::ExitCode {
    match testbed::storage::command::main() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("storage: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            eprintln!("{text}");
            std::process::ExitCode::FAILURE
        }
    }
}
