//! Live reload, with the file as kubelet changes it. Time is paused: waiting costs nothing.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podmon::settings::{INTERVAL, Settings};
use podmon::telemetry::{Format, Level, Telemetry};
use tempfile::TempDir;
use tokio::sync::watch;
use tracing::subscriber::DefaultGuard;

use super::{FORMAT, LEVEL, POLL_RATE, SKIP, THRESHOLD, settings, source};

/// A followed file and what was said about it.
struct Followed {
    directory: TempDir,
    settings: watch::Receiver<Settings>,
    log: Arc<Mutex<Vec<u8>>>,
    generation: u32,
    _log: DefaultGuard,
}

impl Followed {
    /// With a ConfigMap volume's layout: file → `..data` → a directory for each generation.
    fn start(yaml: &str, args: &[&str]) -> Self {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&log);
        let (subscriber, telemetry) = Telemetry::new(move || Sink(Arc::clone(&sink)));
        let guard = tracing::subscriber::set_default(subscriber);

        let directory = TempDir::new().expect("a temporary directory");
        symlink("..data/params.yaml", directory.path().join("params.yaml")).expect("a link");
        swap(directory.path(), 0, yaml);
        let follower = source(&directory.path().join("params.yaml"), args, &[])
            .load()
            .expect("a good file");
        let settings = follower.subscribe();
        tokio::spawn(follower.run(move |settings| {
            telemetry.set(settings.log_level, settings.log_format);
        }));
        Self {
            directory,
            settings,
            log,
            generation: 0,
            _log: guard,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("params.yaml")
    }

    fn swap(&mut self, yaml: &str) {
        self.generation += 1;
        swap(self.directory.path(), self.generation, yaml);
    }

    fn now(&self) -> Settings {
        self.settings.borrow().clone()
    }

    /// The values after the next change.
    async fn changed(&mut self) -> Settings {
        tokio::time::timeout(INTERVAL * 100, self.settings.changed())
            .await
            .expect("the change is seen")
            .expect("it is still followed");
        self.settings.borrow_and_update().clone()
    }

    /// Long enough for anything to be seen.
    async fn looks(&self) {
        tokio::time::sleep(INTERVAL * 10 + Duration::from_millis(1)).await;
    }

    fn said(&self, text: &str) -> usize {
        let log = self.log.lock().expect("a log");
        String::from_utf8_lossy(&log).matches(text).count()
    }
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// As kubelet does it: a new directory, a new link beside the old one, and a rename over it.
fn swap(directory: &Path, generation: u32, yaml: &str) {
    let name = format!("..generation_{generation}");
    std::fs::create_dir(directory.join(&name)).expect("a directory");
    std::fs::write(directory.join(&name).join("params.yaml"), yaml).expect("a file");
    symlink(&name, directory.join("..data_tmp")).expect("a link");
    std::fs::rename(directory.join("..data_tmp"), directory.join("..data")).expect("a rename");
    if let Some(previous) = generation.checked_sub(1) {
        std::fs::remove_dir_all(directory.join(format!("..generation_{previous}")))
            .expect("the old directory goes");
    }
}

#[tokio::test(start_paused = true)]
async fn swapped_symlinks_are_seen_and_an_absent_key_falls_back_to_its_flag() {
    let mut file = Followed::start(
        &format!("{POLL_RATE}: 5\n"),
        &["--arrayConnectivityPollRate=60"],
    );
    assert_eq!(
        file.now(),
        settings(5, 3, false, Level::Debug, Format::Text)
    );
    file.swap(&format!(
        "{POLL_RATE}: 7\n{THRESHOLD}: 4\n{SKIP}: true\n{LEVEL}: info\n{FORMAT}: json\n"
    ));
    assert_eq!(
        file.changed().await,
        settings(7, 4, true, Level::Info, Format::Json)
    );
    assert_eq!(
        file.said("{\"key\":\"LOG_LEVEL\""),
        1,
        "the log itself follows"
    );
    file.swap("");
    assert_eq!(
        file.changed().await,
        settings(60, 3, false, Level::Debug, Format::Text)
    );
    assert_eq!(file.said("configuration file has changed"), 2);
    // Five values each time; the first ones are the process's to log.
    assert_eq!(
        file.said("parameter value after config file processing"),
        10
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_in_place_is_seen() {
    let mut file = Followed::start("", &[]);
    std::fs::write(file.file(), format!("{THRESHOLD}: 9\n")).expect("a file");
    assert_eq!(file.changed().await.connection_loss_threshold.get(), 9);
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_while_the_content_is_the_same() {
    let mut file = Followed::start("", &[]);
    file.swap("");
    file.looks().await;
    assert!(!file.settings.has_changed().expect("still followed"));
    assert_eq!(file.said("configuration file has changed"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_bad_value_warns_and_keys_before_it_are_in_effect() {
    let start =
        format!("{LEVEL}: info\n{FORMAT}: json\n{POLL_RATE}: 5\n{THRESHOLD}: 4\n{SKIP}: true\n");
    let mut file = Followed::start(&start, &[]);
    file.swap(&format!("{LEVEL}: warn\n{POLL_RATE}: 6\n{THRESHOLD}: x\n"));
    // The threshold and what is behind it stay, the format before it falls back.
    assert_eq!(
        file.changed().await,
        settings(6, 4, true, Level::Warning, Format::Text)
    );
    assert_eq!(
        file.said(&format!("parsing {THRESHOLD} failed: value was x")),
        1
    );

    file.swap(&format!("{LEVEL}: loud\n{FORMAT}: json\n{POLL_RATE}: 8\n"));
    assert_eq!(
        file.changed().await,
        settings(6, 4, true, Level::Debug, Format::Text)
    );
    assert_eq!(file.said("is not valid"), 1);
    file.looks().await;
    assert_eq!(file.said("is not valid"), 1, "said once per change");

    file.swap(&start);
    assert_eq!(
        file.changed().await,
        settings(5, 4, true, Level::Info, Format::Json)
    );
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_text_changes_nothing() {
    let start = format!("{LEVEL}: info\n{POLL_RATE}: 5\n");
    let mut file = Followed::start(&start, &[]);
    let before = file.now();
    file.swap("a: {");
    file.looks().await;
    assert_eq!(file.now(), before);
    assert_eq!(file.said("unable to read driver config file"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_missing_file_changes_nothing_and_is_followed_on() {
    let mut file = Followed::start(&format!("{LEVEL}: info\n{POLL_RATE}: 5\n"), &[]);
    let before = file.now();
    std::fs::remove_file(file.directory.path().join("..data")).expect("a link");
    file.looks().await;
    assert_eq!(file.now(), before);
    assert_eq!(
        file.said("unable to read driver config file"),
        1,
        "said once"
    );
    file.swap(&format!("{POLL_RATE}: 6\n"));
    assert_eq!(file.changed().await.poll_rate, Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_just_being_written_is_not_taken() {
    let mut file = Followed::start("", &[]);
    // Between two looks.
    tokio::time::sleep(INTERVAL / 2).await;
    std::fs::write(file.file(), format!("{POLL_RATE}: 6")).expect("a file");
    tokio::time::sleep(INTERVAL).await;
    std::fs::write(file.file(), format!("{POLL_RATE}: 60")).expect("a file");
    assert_eq!(file.changed().await.poll_rate, Duration::from_secs(60));
}
