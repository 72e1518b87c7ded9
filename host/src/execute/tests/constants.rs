//! What is the same in all runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::Bench;
use super::threads;
use crate::device::AllocatorAttributes;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::execute::RunOptions;
use crate::execute::fake::FakeWorld;
use crate::execute::fake::Sketch;
use crate::tensor::Allocator;
use crate::tensor::DType;
use crate::tensor::Tensor;

#[test]
fn constants_are_made_once_and_shared_by_plans() {
    let text = "
        c = Const() @ 0
        a = Neg(c) @ 0
        b = Sum(c, c) @ 0
    ";
    let bench = Bench::new(FakeWorld::new(&["CPU"]), Sketch::parse(text), &threads(1));
    let first = bench.prepare(&[], &["a"], &[]).unwrap();
    let n_allocations = bench.world.devices[0].own.stats().n_allocations;
    let second = bench.prepare(&[], &["b"], &[]).unwrap();
    assert_eq!(
        bench.world.devices[0].own.stats().n_allocations,
        n_allocations
    );
    assert!(
        bench
            .run_prepared(&first, &[], &RunOptions::default())
            .is_ok()
    );
    let fetched = bench.run_prepared(&second, &[], &RunOptions::default());
    assert_eq!(fetched.unwrap(), [[2.0, 4.0, 6.0, 8.0]]);
}

/// Adds its inputs. A constant second input is doubled when it is prepacked, so that results show
/// which form was read.
struct Prepacks {
    n_packs: Arc<AtomicU64>,
    /// Whether the constant itself is not read any more.
    replaces: bool,
    /// Whether kernels share the prepacked constant.
    shares: bool,
}

impl Kernel for Prepacks {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let lhs = context.input(0)?;
        let constant = context.input(1)?;
        let rhs = context.prepacked_input(1).unwrap_or(constant);
        assert_eq!(constant.shape(), lhs.shape());
        let (l, r) = (lhs.as_slice::<f32>()?, rhs.as_slice::<f32>()?);
        context.fill_output(0, lhs.shape(), |out| {
            for (o, (l, r)) in out.iter_mut().zip(l.iter().zip(r)) {
                *o = l + r;
            }
            Ok(())
        })
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        if index != 1 {
            return Ok(None);
        }
        self.n_packs.fetch_add(1, Ordering::Relaxed);
        let allocator = device.allocator(AllocatorAttributes::default());
        let mut prepacked = Tensor::zeros(&*allocator, DType::F32, constant.shape().clone())?;
        let elements = prepacked.as_slice_mut::<f32>().unwrap();
        for (to, from) in elements.iter_mut().zip(constant.as_slice::<f32>()?) {
            *to = 2.0 * from;
        }
        Ok(Some(prepacked))
    }

    fn prepacked_form(&self, _: usize) -> Option<&'static str> {
        self.shares.then_some("doubled")
    }

    fn replaces_prepacked_input(&self, _: usize) -> bool {
        self.replaces
    }
}

/// Returns a world whose `Prepacks` and `Shares` count how often they prepack.
fn prepacking(replaces: bool) -> (FakeWorld, Arc<AtomicU64>) {
    let mut world = FakeWorld::new(&["CPU"]);
    let counter = Arc::new(AtomicU64::new(0));
    for (op, shares) in [("Prepacks", false), ("Shares", true)] {
        let n_packs = Arc::clone(&counter);
        let def = KernelDef::new(op, "CPU");
        world.registry.register(def.with_factory(move |_| {
            Ok(Box::new(Prepacks {
                n_packs: Arc::clone(&n_packs),
                replaces,
                shares,
            }))
        }));
    }
    (world, counter)
}

#[test]
fn a_constant_that_only_prepacking_kernels_read_is_released() {
    let text = "
        x = Placeholder() @ 0
        c = Const() @ 0
        d = Const() @ 0
        y = Prepacks(x, c) @ 0
        z = Prepacks(y, d) @ 0
        n = Neg(d) @ 0
    ";
    let x = ("x", [10.0; 4]);
    let in_use_bytes = |replaces, fetches: &[&str]| {
        let bench = Bench::new(prepacking(replaces).0, Sketch::parse(text), &threads(1));
        let prepared = bench.prepare(&["x"], fetches, &[]).unwrap();
        let in_use_bytes = bench.world.devices[0].own.stats().in_use_bytes;
        let found = bench.run_prepared(&prepared, &[x], &RunOptions::default());
        (in_use_bytes, found.unwrap())
    };
    let (kept, expected) = in_use_bytes(false, &["z"]);
    let (released, found) = in_use_bytes(true, &["z"]);
    assert_eq!(found, expected);
    // Of four tensors of 16 bytes, the two prepacked ones stay.
    assert_eq!((kept, released), (64, 32));
    // Another node reads `d`, and `c` is fetched.
    let (read, found) = in_use_bytes(true, &["z", "n", "c"]);
    assert_eq!(found[0], expected[0]);
    assert_eq!(found[1..], [[-1.0, -2.0, -3.0, -4.0], [1.0, 2.0, 3.0, 4.0]]);
    assert_eq!(read, 64);
}

#[test]
fn kernels_that_name_the_same_form_share_a_prepacked_constant() {
    let text = "
        x = Placeholder() @ 0
        c = Const() @ 0
        y = Shares(x, c) @ 0
        z = Shares(y, c) @ 0
        w = Prepacks(z, c) @ 0
    ";
    let (world, n_packs) = prepacking(true);
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let run = |fetch| {
        let prepared = bench.prepare(&["x"], &[fetch], &[]).unwrap();
        let in_use_bytes = bench.world.devices[0].own.stats().in_use_bytes;
        let planned = bench.executor.memory_plan(&prepared).memories[0].prepacked_bytes;
        let fed = [("x", [10.0; 4])];
        let found = bench.run_prepared(&prepared, &fed, &RunOptions::default());
        (in_use_bytes, planned, found.unwrap())
    };
    assert_eq!(run("z"), (16, 16, vec![vec![14.0, 18.0, 22.0, 26.0]]));
    assert_eq!(n_packs.load(Ordering::Relaxed), 1);
    // One with a form of its own needs the released constant again.
    assert_eq!(run("w"), (32, 32, vec![vec![16.0, 22.0, 28.0, 34.0]]));
    assert_eq!(n_packs.load(Ordering::Relaxed), 2);
}

#[test]
fn a_released_constant_is_made_again_for_a_plan_that_reads_it() {
    let (world, n_packs) = prepacking(true);
    let text = "
        x = Placeholder() @ 0
        c = Const() @ 0
        y = Prepacks(x, c) @ 0
    ";
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let x = ("x", [10.0; 4]);
    let expected = [12.0, 14.0, 16.0, 18.0];
    assert_eq!(bench.run(&[x], &["y"]).unwrap(), [expected]);
    let both = bench.run(&[x], &["y", "c"]).unwrap();
    assert_eq!(both, [expected, [1.0, 2.0, 3.0, 4.0]]);
    assert_eq!(bench.run(&[x], &["y"]).unwrap(), [expected]);
    assert_eq!(n_packs.load(Ordering::Relaxed), 1);
}

#[test]
fn constants_are_prepacked_once_and_only_while_they_are_constant() {
    let (world, n_packs) = prepacking(false);
    let text = "
        x = Placeholder() @ 0
        c = Const() @ 0
        y = Prepacks(x, c) @ 0
        z = Prepacks(c, x) @ 0
    ";
    let bench = Bench::new(world, Sketch::parse(text), &threads(2));
    let x = ("x", [10.0; 4]);
    assert_eq!(bench.run(&[x], &["y"]).unwrap(), [[12.0, 14.0, 16.0, 18.0]]);
    let both = bench.run(&[x], &["y", "z"]).unwrap();
    assert_eq!(both, [[12.0, 14.0, 16.0, 18.0], [11.0, 12.0, 13.0, 14.0]]);
    // A constant that is fed is none.
    let fed = bench.run(&[x, ("c", [1.0; 4])], &["y"]).unwrap();
    assert_eq!(fed, [[11.0; 4]]);
    assert_eq!(n_packs.load(Ordering::Relaxed), 1);
}
