//! Where the kubelet keeps a CSI volume on the host, and where the Dell drivers keep more of it
//! (contract.md §1.21). Formulas only; nothing is read here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::domain::{DriverName, PodUid, VolumeHandle, VolumeName};
use crate::names::Profile;

/// The kubelet's directory, and the driver's own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    kubelet: PathBuf,
    profile: Profile,
    driver: DriverName,
    /// `X_CSI_PRIVATE_MOUNT_DIR`.
    private: Option<PathBuf>,
}

/// The kubelet's directory unless a flag says otherwise.
pub const KUBELET: &str = "/var/lib/kubelet";

/// The file in which the kubelet notes whose volume a directory is.
pub const VOLUME_DATA: &str = "vol_data.json";

impl Layout {
    pub fn new(
        kubelet: PathBuf,
        profile: Profile,
        driver: DriverName,
        private: Option<PathBuf>,
    ) -> Self {
        Self {
            kubelet,
            profile,
            driver,
            private,
        }
    }

    pub fn kubelet(&self) -> &Path {
        &self.kubelet
    }

    pub fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// One directory per incarnation.
    pub fn pods(&self) -> PathBuf {
        self.kubelet.join("pods")
    }

    pub fn pod(&self, uid: &PodUid) -> PathBuf {
        self.pods().join(component(uid.as_str()))
    }

    /// What the CSI drivers share: staging directories and block devices.
    pub fn csi(&self) -> PathBuf {
        self.kubelet.join("plugins/kubernetes.io/csi")
    }

    /// Block volumes: `staging/<pv>`, `publish/<pv>/<pod>`, `<pv>/dev/<pod>`, `<pv>/data/vol_data.json`.
    pub fn block(&self) -> PathBuf {
        self.csi().join("volumeDevices")
    }

    /// The staging directories of our driver's file systems, one per hash of the handle.
    pub fn staging(&self) -> PathBuf {
        self.csi().join(self.driver.as_str())
    }

    /// The staging directories of Kubernetes 1.24 and older, one per PersistentVolume, all drivers together.
    pub fn old_staging(&self) -> PathBuf {
        self.csi().join("pv")
    }

    /// Every path that a NodeStageVolume for this volume may have got.
    pub fn staging_paths(&self, volume: &VolumeName, handle: &VolumeHandle) -> Vec<PathBuf> {
        let name = component(volume.as_str());
        let mut paths = vec![
            self.staging().join(hash(handle)).join("globalmount"),
            self.old_staging().join(&name).join("globalmount"),
            self.block().join("staging").join(&name),
        ];
        if self.profile == Profile::PowerFlex {
            for base in self.private_bases() {
                paths.push(base.join(component(handle.as_str())));
                paths.push(base.join(hash(handle)));
            }
        }
        if let (Profile::PowerStore | Profile::PowerMax, Some(private)) =
            (self.profile, &self.private)
            && *private != self.kubelet
        {
            let csi = private.join("plugins/kubernetes.io/csi");
            paths.push(csi.join("pv").join(&name).join("globalmount"));
            paths.push(csi.join("volumeDevices/staging").join(&name));
        }
        paths
    }

    /// Mounts that the driver keeps of a volume besides the staged one and the pods' own.
    pub fn private_mounts(&self, handle: &VolumeHandle) -> Vec<PathBuf> {
        match self.profile {
            Profile::PowerFlex => self
                .private_bases()
                .into_iter()
                .map(|base| base.join(component(handle.as_str())))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// PowerFlex keeps its own mounts in its plugin directory; one of its charts names the kubelet's directory
    /// instead, so both are looked at.
    fn private_bases(&self) -> Vec<PathBuf> {
        let own = self.kubelet.join("plugins/vxflexos.emc.dell.com/disks");
        let named = self.private.iter().filter(|base| **base != own).cloned();
        std::iter::once(own.clone()).chain(named).collect()
    }

    /// Whether a mount at `point` shows this volume: below the kubelet's plugins or the driver's private directory,
    /// under its name, its handle or the hash of it.
    pub fn shows(&self, point: &Path, volume: &VolumeName, handle: &VolumeHandle) -> bool {
        let plugins = self.kubelet.join("plugins");
        let mut bases = std::iter::once(&plugins).chain(&self.private);
        let Some(rest) = bases.find_map(|base| point.strip_prefix(base).ok()) else {
            return false;
        };
        if rest.starts_with("pods") {
            return false;
        }
        let hash = hash(handle);
        let named = [volume.as_str(), handle.as_str(), hash.as_str()];
        rest.components().any(|part| {
            let part = part.as_os_str();
            named.iter().any(|name| part == *name)
        })
    }
}

/// The kubelet's name for a handle: its SHA-256 in lower-case hexadecimal.
pub fn hash(handle: &VolumeHandle) -> String {
    let digest = Sha256::digest(handle.as_str().as_bytes());
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A driver's name for a volume as one path component; a name that would lead elsewhere leads nowhere.
fn component(name: &str) -> String {
    match name {
        "" | "." | ".." => "_".to_owned(),
        name => name.replace('/', "_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(profile: Profile, driver: &str, private: Option<&str>) -> Layout {
        Layout::new(
            KUBELET.into(),
            profile,
            driver.into(),
            private.map(PathBuf::from),
        )
    }

    #[test]
    fn both_generations_of_staging_paths() {
        let layout = layout(Profile::Unity, "csi-unity.dellemc.com", None);
        assert_eq!(layout.staging_paths(&"pv1".into(), &"abc".into()).len(), 3);
        assert_eq!(
            layout.staging_paths(&"pv1".into(), &"abc".into())[..2],
            [
                PathBuf::from(format!(
                    "/var/lib/kubelet/plugins/kubernetes.io/csi/csi-unity.dellemc.com/{}/globalmount",
                    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
                )),
                PathBuf::from("/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pv1/globalmount"),
            ]
        );
    }

    /// D7: the operator gives PowerFlex the kubelet's directory as its private one.
    #[test]
    fn d7_powerflex_private_mounts_are_looked_for_where_they_are() {
        let driver = "csi-vxflexos.dellemc.com";
        let layout = layout(Profile::PowerFlex, driver, Some(KUBELET));
        let own = "/var/lib/kubelet/plugins/vxflexos.emc.dell.com/disks/sys-vol";
        let mounts = layout.private_mounts(&"sys-vol".into());
        assert!(mounts.contains(&PathBuf::from(own)), "{mounts:?}");
        let volume = ("pv1".into(), "sys-vol".into());
        assert!(layout.shows(Path::new(own), &volume.0, &volume.1));
        let pod = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv1/mount";
        assert!(!layout.shows(Path::new(pod), &volume.0, &volume.1));
    }

    /// D8: a newer PowerFlex driver stages where the kubelet tells it to.
    #[test]
    fn d8_powerflex_is_also_unstaged_from_the_kubelets_path() {
        let layout = layout(Profile::PowerFlex, "csi-vxflexos.dellemc.com", None);
        let paths = layout.staging_paths(&"pv1".into(), &"abc".into());
        assert!(
            paths
                .iter()
                .any(|path| path.ends_with("globalmount") && path.starts_with(layout.staging()))
        );
    }

    #[test]
    fn a_handle_never_leads_out_of_its_directory() {
        let layout = layout(Profile::PowerFlex, "csi-vxflexos.dellemc.com", None);
        for handle in ["..", "../../etc", "/etc", ""] {
            for path in layout.private_mounts(&handle.into()) {
                assert!(path.starts_with(KUBELET), "{path:?}");
                assert!(!path.components().any(|part| part.as_os_str() == ".."));
            }
        }
    }
}
