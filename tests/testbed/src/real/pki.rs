//! The cluster's certificates: one authority, a leaf for every component, and the key that signs ServiceAccount tokens.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use super::{Context, Error, Result};

/// Issues certificates into one folder.
pub struct Pki {
    folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// The files of a leaf certificate.
#[derive(Debug, Clone)]
pub struct Leaf {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Pki {
    /// Makes a new authority (`ca.crt`) and the ServiceAccount key (`sa.key`, `sa.pub`).
    pub fn create(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).context(|| format!("create {}", folder.display()))?;
        let failed = |source| Error::Certificate {
            name: "the authority".into(),
            source,
        };
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
            .distinguished_name
            .push(DnType::CommonName, "podmon-testbed");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().map_err(failed)?)
            .map_err(failed)?;
        let pki = Pki {
            folder: folder.into(),
            authority,
        };
        write(&pki.authority_file(), &pki.authority.pem())?;
        let signing = KeyPair::generate().map_err(failed)?;
        write(&pki.service_account_key(), &signing.serialize_pem())?;
        write(&pki.service_account_public_key(), &signing.public_key_pem())?;
        Ok(pki)
    }

    /// The authority's certificate.
    pub fn authority_file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The key that signs ServiceAccount tokens.
    pub fn service_account_key(&self) -> PathBuf {
        self.folder.join("sa.key")
    }

    /// The key that checks them.
    pub fn service_account_public_key(&self) -> PathBuf {
        self.folder.join("sa.pub")
    }

    /// Issues a certificate for client and server use. `group` is the organization, which Kubernetes reads as a user's group;
    /// `addresses` are names and addresses that a server answers under.
    pub fn issue(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
        addresses: &[&str],
    ) -> Result<Leaf> {
        let failed = |source| Error::Certificate {
            name: file.to_owned(),
            source,
        };
        let names: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.authority).map_err(failed)?;
        let leaf = Leaf {
            certificate: self.folder.join(format!("{file}.crt")),
            key: self.folder.join(format!("{file}.key")),
        };
        write(&leaf.certificate, &certificate.pem())?;
        write(&leaf.key, &key.serialize_pem())?;
        Ok(leaf)
    }
}

fn write(path: &Path, content: &str) -> Result<()> {
    std::fs::write(path, content).context(|| format!("write {}", path.display()))
}
