//! The runtime on which a limiter's tasks run.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::AbortHandle;

/// The runtime on which a limiter's tasks run: the caller's, until that ends, and from then on a thread
/// that all limiters of the process share, which never ends.
///
/// A runtime that ends drops its tasks. A task that is dropped before it is done notifies the executor, so that the next
/// task runs in the background.
pub(super) struct Executor {
    /// The multi-thread runtime in which the limiter was built, if there was one.
    callers: Option<Handle>,
    is_in_background: AtomicBool,
}

/// The kind of runtime that runs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeKind {
    Callers,
    Background,
}

impl Executor {
    /// Uses the current runtime, unless that has a single thread, which may be busy elsewhere while
    /// other threads wait for the limiter.
    pub(super) fn new() -> io::Result<Executor> {
        let is_usable = |current: &Handle| current.runtime_flavor() != RuntimeFlavor::CurrentThread;
        let callers = Handle::try_current().ok().filter(is_usable);
        if callers.is_none() {
            background()?;
        }
        let is_in_background = AtomicBool::new(callers.is_none());
        Ok(Executor { callers, is_in_background })
    }

    /// Returns the kind of runtime that runs the next task. Once it is the background, it stays the background.
    pub(super) fn runtime_kind(&self) -> RuntimeKind {
        match self.is_in_background.load(Ordering::Relaxed) {
            true => RuntimeKind::Background,
            false => RuntimeKind::Callers,
        }
    }

    /// Runs all tasks in the background from now on, because the caller's runtime has ended.
    pub(super) fn leave_callers_runtime(&self) {
        self.is_in_background.store(true, Ordering::Relaxed);
    }

    /// Returns the runtime for the next task, or `None` if no thread can be started.
    fn runtime(&self) -> Option<&Handle> {
        match (self.runtime_kind(), &self.callers) {
            (RuntimeKind::Callers, Some(callers)) => Some(callers),
            _ => background().ok(),
        }
    }

    /// Returns whether there is a runtime for the next task.
    pub(super) fn has_runtime(&self) -> bool {
        self.runtime().is_some()
    }

    /// Runs a task, or drops it if there is no runtime. The task is dropped too when its runtime ends.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Some(runtime) = self.runtime() else { return };
        let unfinished = UnfinishedTask { executor: Some(Arc::clone(self)) };
        runtime.spawn(async move {
            let task = pin!(task);
            // Declared last, and so dropped first: the executor already uses the background when the task's values are
            // dropped.
            let unfinished = unfinished;
            task.await;
            unfinished.finish();
        });
    }

    /// Runs a task that uses neither I/O nor time, and moves it to the background when its runtime ends.
    pub(super) fn spawn_movable(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Some(runtime) = self.runtime() else { return };
        runtime.spawn(MovableTask { executor: Arc::clone(self), task: Some(Box::pin(task)) });
    }

    /// Runs a task until it is done or the timer is dropped; `None` if there is no runtime.
    pub(super) fn timer(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<Timer> {
        Some(Timer(self.runtime()?.spawn(task).abort_handle()))
    }
}

/// A task that ends when this is dropped.
pub(super) struct Timer(AbortHandle);

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A task that is not done. Dropping this means that the task will never be done.
struct UnfinishedTask {
    /// `None` once the task is done.
    executor: Option<Arc<Executor>>,
}

impl UnfinishedTask {
    fn finish(mut self) {
        self.executor = None;
    }
}

impl Drop for UnfinishedTask {
    fn drop(&mut self) {
        if let Some(executor) = &self.executor {
            executor.leave_callers_runtime();
        }
    }
}

/// A task that moves to the background when its runtime ends.
struct MovableTask {
    executor: Arc<Executor>,
    /// `None` once it is done.
    task: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Future for MovableTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(task) = &mut self.task {
            ready!(task.as_mut().poll(context));
        }
        self.task = None;
        Poll::Ready(())
    }
}

impl Drop for MovableTask {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        self.executor.leave_callers_runtime();
        // A task that has panicked cannot be continued.
        if let (false, Some(runtime)) = (thread::panicking(), self.executor.runtime()) {
            runtime.spawn(task);
        }
    }
}

/// Returns the runtime that all limiters of the process share. The first call starts it; if the system has no thread for
/// it, the next call tries again.
fn background() -> io::Result<&'static Handle> {
    static BACKGROUND: OnceLock<Runtime> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(runtime) = BACKGROUND.get() {
        return Ok(runtime.handle());
    }
    // Held, so that no second runtime is made: a runtime cannot be dropped inside another one.
    let _starting = STARTING.lock();
    if let Some(runtime) = BACKGROUND.get() {
        return Ok(runtime.handle());
    }
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).thread_name("tollgate-redis").enable_all().build()?;
    Ok(BACKGROUND.get_or_init(|| runtime).handle())
}
