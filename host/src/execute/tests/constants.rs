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
struct Prepacks(Arc<AtomicU64>);

impl Kernel for Prepacks {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let lhs = context.input(0)?;
        let rhs = context.prepacked_input(1).unwrap_or(context.input(1)?);
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
        self.0.fetch_add(1, Ordering::Relaxed);
        let allocator = device.allocator(AllocatorAttributes::default());
        let mut prepacked = Tensor::zeros(&*allocator, DType::F32, constant.shape().clone())?;
        let elements = prepacked.as_slice_mut::<f32>().unwrap();
        for (to, from) in elements.iter_mut().zip(constant.as_slice::<f32>()?) {
            *to = 2.0 * from;
        }
        Ok(Some(prepacked))
    }
}

#[test]
fn constants_are_prepacked_once_and_only_while_they_are_constant() {
    let mut world = FakeWorld::new(&["CPU"]);
    let n_packs = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&n_packs);
    let def = KernelDef::new("Prepacks", "CPU");
    world
        .registry
        .register(def.with_factory(move |_| Ok(Box::new(Prepacks(Arc::clone(&counter))))));
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
