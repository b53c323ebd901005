//! Where the driver listens.

use std::path::PathBuf;

/// A `--csisock` that names no unix socket.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum SocketError {
    #[error(
        "--csisock must name the CSI driver's unix socket, for example unix:/var/run/csi/csi.sock, but it is empty"
    )]
    Empty,
    #[error("--csisock must be unix:/path, unix:///path or a path, but was {0:?}")]
    NotUnix(String),
}

/// The path in a gRPC target of the form `unix:/path` or `unix:///path`, or in a bare path.
pub fn socket_path(target: &str) -> Result<PathBuf, SocketError> {
    let not_unix = || SocketError::NotUnix(target.to_owned());
    let path = match target.strip_prefix("unix:") {
        // Two slashes announce a host, and a socket has none.
        Some(rest) if rest.starts_with("//") => &rest[2..],
        Some(path) => path,
        None if target.is_empty() => return Err(SocketError::Empty),
        // Any other scheme, or host:port.
        None if target.contains(':') => return Err(not_unix()),
        None => target,
    };
    let host_form = target.starts_with("unix://");
    if path.is_empty() || (host_form && !path.starts_with('/')) {
        return Err(not_unix());
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for (target, path) in [
            ("unix:/var/run/csi/csi.sock", "/var/run/csi/csi.sock"),
            ("unix:///var/run/csi/csi.sock", "/var/run/csi/csi.sock"),
            ("/var/run/csi/csi.sock", "/var/run/csi/csi.sock"),
            ("unix:csi.sock", "csi.sock"),
            ("./csi.sock", "./csi.sock"),
        ] {
            assert_eq!(socket_path(target), Ok(path.into()), "{target}");
        }
        assert_eq!(socket_path(""), Err(SocketError::Empty));
        for target in [
            "unix:",
            "unix://",
            "unix://host/csi.sock",
            "unix-abstract:name",
            "tcp://localhost:9000",
            "localhost:9000",
            "dns:///driver",
        ] {
            assert_eq!(
                socket_path(target),
                Err(SocketError::NotUnix(target.to_owned()))
            );
        }
    }
}
