//! Runs an asynchronous client for a caller that blocks.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::base::advice::TOO_FEW_FILES;

/// A thread on which a client responds to its peer even while its caller is idle.
pub(crate) struct ClientThread(Option<Runtime>);

impl ClientThread {
    /// A thread with this name, of at most 15 bytes.
    pub(crate) fn start(name: &'static str) -> Result<Self, String> {
        // One worker is enough for one connection. It also runs between calls, to respond to the
        // peer's keep-alives.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .thread_name(name)
            .enable_all()
            .build();
        let runtime = runtime
            .map_err(|why| format!("cannot start the client's runtime, {TOO_FEW_FILES}: {why}"))?;
        Ok(Self(Some(runtime)))
    }

    /// Waits for a result, at most for `timeout`.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, String> {
        let late = || format!("no response within {} s", timeout.as_secs());
        let runtime = self.0.as_ref().ok_or_else(late)?;
        runtime
            .block_on(async { tokio::time::timeout(timeout, work).await })
            .map_err(|_| late())
    }

    /// Waits for a result of work that ends by itself.
    pub(crate) fn block_on<T>(
        &self,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let gone = || "the client's thread has ended".to_owned();
        self.0.as_ref().ok_or_else(gone)?.block_on(work)
    }

    /// Runs work while the caller goes on.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            runtime.spawn(work);
        }
    }
}

impl Drop for ClientThread {
    /// Waits for nothing: a lookup of a name may take long.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
