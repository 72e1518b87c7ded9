//! Devices that are dropped while others work with them.

use std::mem;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use placewright::backend::opencl::SyclDeviceFactory;
use placewright::backend::opencl::call_within_a_command;
use placewright::device::Device;
use placewright::device::DeviceFactory;

use super::PREFIX;
use super::floats;
use super::options;
use crate::needs;

/// How long a test waits, before it fails, for something that takes no time.
const WATCHDOG: Duration = Duration::from_secs(60);

#[test]
#[needs(SyclPair)]
fn a_device_may_be_dropped_within_a_command_of_one_that_it_waits_for() {
    let pair = needs::sycl_pair().unwrap();
    let mut devices = SyclDeviceFactory.create(&options(1), PREFIX).unwrap();
    let second = devices.remove(pair[1]);
    let first = devices.remove(pair[0]);
    drop(devices);
    let context = |device: &Arc<dyn Device>| {
        let device = device.as_kernel_device().unwrap();
        Arc::clone(device.default_context())
    };
    let (own, other) = (context(&first), context(&second));
    let tensor = other.copy_from_host(&floats(64)).unwrap();
    let (give, take) = mpsc::channel();
    call_within_a_command(&other, move || drop(take.recv())).unwrap();
    // Waits until the other device has executed that command.
    let copied = own.copy_from_device(&tensor, &other);
    let copied = copied.expect("they are of one platform").unwrap();
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&own)), (1, 2));
    give.send((copied, own, first)).unwrap();
    let (say, hear) = mpsc::channel();
    call_within_a_command(&other, move || say.send(()).unwrap()).unwrap();
    if hear.recv_timeout(WATCHDOG).is_err() {
        // Dropping them would wait, too.
        mem::forget((second, other, tensor));
        panic!("the devices wait for each other");
    }
}
