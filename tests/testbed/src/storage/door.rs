//! The way of a driver to its array, in this process or in another.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::array::{Array, Refusal};
use super::client::{Client, ClientError};
use super::request::{Answer, Request};

/// Where the array is.
#[derive(Clone)]
pub enum Door {
    /// In this process, with the clock that it is to go by.
    Here {
        array: Arc<Mutex<Array>>,
        now: Arc<dyn Fn() -> Duration + Send + Sync>,
    },
    /// Behind a socket.
    There(Client),
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here { .. } => "Door::Here",
            Self::There(_) => "Door::There",
        })
    }
}

impl Door {
    /// Asks the array. Not for the data path: what stalls there would stall here.
    pub async fn ask(&self, request: Request) -> Result<Answer, Refusal> {
        match self {
            Self::Here { array, now } => {
                let mut array = array.lock().unwrap_or_else(PoisonError::into_inner);
                array.answer(now(), request)
            }
            Self::There(client) => {
                // A connection of its own: calls must not wait for each other.
                let client = client.clone();
                let asked = move || client.ask(&request, &[]);
                match tokio::task::spawn_blocking(asked).await {
                    Ok(Ok((answer, _))) => Ok(answer),
                    Ok(Err(ClientError::Refused(refusal))) => Err(refusal),
                    Ok(Err(error)) => Err(Refusal::Broken(error.to_string())),
                    Err(error) => Err(Refusal::Broken(error.to_string())),
                }
            }
        }
    }
}
