//! Requests and answers on a byte stream: two lengths, a JSON head, and the data beside it.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// More than any FUSE request carries, and far less than what would hurt.
const LARGEST: u32 = 256 << 20;

/// Writes one message.
pub fn send<T: Serialize>(to: &mut impl Write, head: &T, data: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let mut message = Vec::with_capacity(8 + head.len() + data.len());
    message.extend(length(&head)?.to_be_bytes());
    message.extend(length(data)?.to_be_bytes());
    message.extend(head);
    message.extend(data);
    to.write_all(&message)
}

/// Reads one message; none when the other side has closed the stream between two messages.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<(T, Vec<u8>)>> {
    let mut first = [0; 4];
    match from.read(&mut first)? {
        0 => return Ok(None),
        read => from.read_exact(&mut first[read..])?,
    }
    let mut second = [0; 4];
    from.read_exact(&mut second)?;
    let head = exactly(from, u32::from_be_bytes(first))?;
    let data = exactly(from, u32::from_be_bytes(second))?;
    Ok(Some((serde_json::from_slice(&head)?, data)))
}

fn length(part: &[u8]) -> io::Result<u32> {
    match u32::try_from(part.len()) {
        Ok(length) if length <= LARGEST => Ok(length),
        _ => Err(too_large(part.len())),
    }
}

fn exactly(from: &mut impl Read, length: u32) -> io::Result<Vec<u8>> {
    if length > LARGEST {
        return Err(too_large(length as usize));
    }
    let mut part = vec![0; length as usize];
    from.read_exact(&mut part)?;
    Ok(part)
}

fn too_large(length: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a message part of {length} bytes"),
    )
}
