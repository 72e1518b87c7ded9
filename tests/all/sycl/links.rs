//! The measured cost of copies between two devices.

use placewright::backend::opencl::SyclDeviceFactory;
use placewright::cost::CalibrateOptions;
use placewright::cost::Calibrations;
use placewright::cost::calibrate_pair;
use placewright::device::DeviceFactory;
use placewright::names::DeviceId;
use placewright::session::Session;

use super::PREFIX;
use super::options;
use crate::needs;

#[test]
#[needs(SyclPair)]
fn plans_use_the_measured_cost_of_copies_between_devices() {
    let pair = needs::sycl_pair().unwrap();
    let devices = SyclDeviceFactory.create(&options(1), PREFIX).unwrap();
    let (first, second) = (&*devices[pair[0]], &*devices[pair[1]]);
    let quick = CalibrateOptions::default().with_budget(std::time::Duration::from_millis(100));
    let link = calibrate_pair(first, second, &quick).unwrap();
    let link = link.expect("they are of one platform");
    assert!(link.latency_ns > 0.0 && link.ns_per_byte >= 0.0, "{link:?}");

    let calibrations = Calibrations::new();
    calibrations.keep_link(first, second, link).unwrap();
    let session = Session::builder()
        .with_graph_def_file(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/models/tiny_add.pb"
        ))
        .with_device_options(options(1).with_device_count("GPU", 0))
        .with_calibrations(calibrations)
        .build()
        .unwrap();
    let names = [first, second].map(|device| device.attributes().name.clone());
    let ids = names.map(|name| session.devices().find_by_name(&name).unwrap());
    let candidates = session.placement().candidates().clone();
    assert_eq!(candidates.link(ids[0], ids[1]), link);
    assert_eq!(candidates.link(ids[1], ids[0]), link);
    assert_ne!(candidates.link(DeviceId(0), ids[0]), link);
}
