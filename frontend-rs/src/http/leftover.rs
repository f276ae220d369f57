//! Request bodies that nobody read to their end.
//!
//! Closing a connection that holds unread data resets it, and the client would see that instead of the answer. So what
//! is left of a body is read, and thrown away, before an error is sent.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

/// How long a client gets to send the rest.
const TIME: Duration = Duration::from_secs(2);

/// Where a body goes when its reader drops it early.
#[derive(Clone, Default)]
pub struct Leftover(Arc<Mutex<Option<Body>>>);

struct Watched {
    body: Body,
    leftover: Leftover,
}

impl Leftover {
    /// The body, which comes here if it is dropped before its end.
    pub fn watch(&self, body: Body) -> Body {
        Body::new(Watched {
            body,
            leftover: self.clone(),
        })
    }

    /// Reads what was left, at most `limit` bytes and for a short time.
    pub async fn discard(self, limit: usize) {
        let body = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take();
        let Some(mut body) = body else { return };
        let read = async {
            let mut left = limit;
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                if length > left {
                    return;
                }
                left -= length;
            }
        };
        let _ = tokio::time::timeout(TIME, read).await;
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.body.is_end_stream() {
            let body = std::mem::take(&mut self.body);
            *self
                .leftover
                .0
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(body);
        }
    }
}
