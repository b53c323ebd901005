//! The kubelet's directories, made in a temporary one.

use proptest::prelude::*;

use super::*;
use crate::names::Profile;

struct Disk {
    base: PathBuf,
    layout: Layout,
    table: String,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

impl Disk {
    fn new(test: &str) -> Self {
        let base = std::env::temp_dir().join(format!("podmon-sight-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir_all(base.join("proc/self")).unwrap();
        fs::create_dir_all(base.join("sys/block/loop0")).unwrap();
        let base = fs::canonicalize(base).unwrap();
        let kubelet = base.join("kubelet");
        fs::create_dir_all(kubelet.join("pods")).unwrap();
        Self {
            layout: Layout::new(kubelet, Profile::Generic, "csi.example.com".into(), None),
            table: "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n".into(),
            base,
        }
    }

    fn mount(&mut self, point: impl AsRef<Path>, propagation: &str) {
        let point = self.base.join(point);
        self.table += &format!(
            "9 1 7:1 / {} rw {propagation} - ext4 /dev/loop1 rw\n",
            point.display()
        );
    }

    fn write(&self, file: impl AsRef<Path>, text: &str) {
        let file = self.base.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn look(&self) -> Sight {
        self.write("proc/self/mountinfo", &self.table);
        look(
            &self.layout,
            &self.base.join("proc"),
            &self.base.join("sys"),
        )
    }
}

const NOTE: &str = r#"{"driverName":"csi.example.com","volumeHandle":"h1","nodeName":"n"}"#;

#[test]
fn a_pods_volumes() {
    let disk = Disk::new("pods");
    let volumes = "kubelet/pods/u1/volumes/kubernetes.io~csi";
    disk.write(format!("{volumes}/pv1/vol_data.json"), NOTE);
    fs::create_dir(disk.base.join(volumes).join("pv1/mount")).unwrap();
    disk.write(format!("{volumes}/pv2/vol_data.json"), "{");
    let inline = NOTE.replace('}', r#","volumeLifecycleMode":"Ephemeral"}"#);
    disk.write(format!("{volumes}/csi-1/vol_data.json"), &inline);
    disk.write("kubelet/pods/u1/volumeDevices/kubernetes.io~csi/pv3", "");
    let pods = disk.look().pods.unwrap();
    let found: Vec<_> = pods[0]
        .volumes
        .as_ref()
        .unwrap()
        .iter()
        .map(|v| {
            let handle = v.identity.as_ref().map(|identity| identity.handle.as_str());
            (v.name.as_str(), v.kind, handle, v.present, v.inline)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("csi-1", Kind::Filesystem, Some("h1"), false, true),
            ("pv1", Kind::Filesystem, Some("h1"), true, false),
            ("pv2", Kind::Filesystem, None, false, false),
            ("pv3", Kind::Block, None, true, false),
        ]
    );
}

#[test]
fn staging_directories_of_both_generations() {
    let disk = Disk::new("staged");
    let csi = "kubelet/plugins/kubernetes.io/csi";
    let hash = hash(&"h1".into());
    disk.write(format!("{csi}/csi.example.com/{hash}/vol_data.json"), NOTE);
    disk.write(format!("{csi}/csi.example.com/{hash}/globalmount/x"), "");
    disk.write(format!("{csi}/csi.other.com/{hash}/globalmount/x"), "");
    disk.write(format!("{csi}/pv/pv7/globalmount/x"), "");
    let staged = disk.look().staged.unwrap();
    assert_eq!(staged.len(), 2, "{staged:?}");
    assert!(staged[0].is_of(&"pv1".into(), &"h1".into()));
    assert!(staged[1].is_of(&"pv7".into(), &"h7".into()));
    assert!(!staged[1].is_of(&"pv1".into(), &"h1".into()));
}

#[test]
fn block_volumes_and_their_loop_devices() {
    let disk = Disk::new("block");
    let block = "kubelet/plugins/kubernetes.io/csi/volumeDevices";
    disk.write(format!("{block}/pv1/data/vol_data.json"), NOTE);
    disk.write(format!("{block}/pv1/dev/u1"), "");
    disk.write(format!("{block}/publish/pv1/u1"), "");
    disk.write(format!("{block}/staging/pv1/x"), "");
    let mapped = disk.layout.block().join("pv1/dev/u1");
    disk.write(
        "sys/block/loop3/loop/backing_file",
        &format!("{}\n", mapped.display()),
    );
    let sight = disk.look();
    let volumes = sight.block.unwrap();
    assert_eq!(volumes.len(), 1);
    assert_eq!(volumes[0].mapped[&"u1".into()], mapped);
    assert!(volumes[0].published.contains_key(&"u1".into()));
    assert!(volumes[0].staging.is_some() && volumes[0].identity.is_some());
    let loops = sight.loops.unwrap();
    assert_eq!((loops.len(), &loops[0].backing), (1, &mapped));
}

/// As in the PowerFlex chart: the pods' directory is mounted into the container, the staging directories are not.
#[test]
fn what_the_container_was_not_given_is_unseen() {
    let mut disk = Disk::new("unseen");
    disk.mount("kubelet/pods", "master:4");
    let sight = disk.look();
    assert!(sight.pods.is_ok());
    assert!(sight.staged.is_err() && sight.block.is_err(), "{sight:?}");
    disk.mount("kubelet/plugins/kubernetes.io/csi", "shared:9");
    let sight = disk.look();
    assert!(sight.staged.is_ok() && sight.block.is_ok());
}

#[test]
fn mounts_that_cannot_show_are_unseen() {
    let mut disk = Disk::new("private");
    disk.mount("kubelet", "");
    assert!(disk.look().pods.is_err());
    let disk = Disk::new("nothing");
    fs::remove_dir(disk.base.join("kubelet/pods")).unwrap();
    assert!(disk.look().pods.is_err());
}

#[test]
fn a_table_that_cannot_be_read_hides_everything() {
    let mut disk = Disk::new("table");
    disk.table += "nonsense\n";
    let sight = disk.look();
    assert!(sight.mounts.is_err() && sight.pods.is_err() && sight.staged.is_err());
}

/// D6: the kubelet's directory is a link, as some installations have it.
#[test]
fn d6_a_linked_kubelet_directory_is_seen_by_its_own_name() {
    let mut disk = Disk::new("linked");
    let link = disk.base.join("link");
    std::os::unix::fs::symlink(disk.base.join("kubelet"), &link).unwrap();
    let target = "pods/u1/volumes/kubernetes.io~csi/pv1/mount";
    disk.mount(format!("kubelet/{target}"), "shared:3");
    fs::create_dir_all(disk.base.join("kubelet").join(target)).unwrap();
    disk.layout = Layout::new(
        link.clone(),
        Profile::Generic,
        "csi.example.com".into(),
        None,
    );
    let sight = disk.look();
    assert!(
        sight
            .mounts
            .unwrap()
            .iter()
            .any(|mount| mount.point == link.join(target))
    );
    assert_eq!(sight.pods.unwrap().len(), 1);
}

proptest! {
    #[test]
    fn no_note_makes_it_panic(bytes: Vec<u8>, text in r#"\{("(driverName|volumeHandle|x)":("[a-z]{0,3}"|null|1|\{\}),?){0,4}\}?"#) {
        let _ = parse_note(&bytes);
        let _ = parse_note(text.as_bytes());
    }
}
