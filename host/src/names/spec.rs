//! Device specifications of TensorFlow's Python front end (`tf.DeviceSpec`). Their grammar differs
//! from that of the runtime.

use std::fmt;
use std::hash::Hash;
use std::hash::Hasher;
use std::str::FromStr;

use super::name::NameError;

/// Types that do not need `device:` before them, in any case.
const SHORT_TYPES: [&str; 5] = ["CPU", "GPU", "TPU", "CUSTOM", "EPU"];

/// What a device scope requests, parsed and printed as in TensorFlow's Python front end
/// (`tf.DeviceSpec`).
///
/// It differs from [`DeviceName`](super::DeviceName), which the runtime parses: the leading slash
/// may be missing, `/cpu` is a type without an index, a job may be any string, indices may be
/// negative, and `/device:GPU` is rejected. Two specifications are equal if they print the same.
///
/// ```
/// use placewright::names::DeviceSpec;
///
/// let spec: DeviceSpec = "job:worker/Gpu".parse()?;
/// assert_eq!(spec.to_string(), "/job:worker/device:GPU:*");
/// // Each component that the other one sets wins, one by one.
/// let merged = "/gpu:1".parse::<DeviceSpec>()?.merged(&"/device:CPU:*".parse()?);
/// assert_eq!(merged.to_string(), "/device:CPU:1");
/// # Ok::<(), placewright::names::NameError>(())
/// ```
#[derive(Debug, Clone, Default, Eq)]
pub struct DeviceSpec {
    /// Job: any string.
    pub job: Option<String>,
    /// Replica within the job.
    pub replica: Option<i64>,
    /// Task within the replica.
    pub task: Option<i64>,
    /// Device type.
    pub device_type: Option<String>,
    /// Index among the devices of that type; not printed without a type.
    pub device_index: Option<i64>,
}

impl DeviceSpec {
    /// Creates a specification that requests nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the job.
    #[must_use]
    pub fn with_job(mut self, job: impl Into<String>) -> Self {
        self.job = Some(job.into());
        self
    }

    /// Sets the replica.
    #[must_use]
    pub fn with_replica(mut self, replica: i64) -> Self {
        self.replica = Some(replica);
        self
    }

    /// Sets the task.
    #[must_use]
    pub fn with_task(mut self, task: i64) -> Self {
        self.task = Some(task);
        self
    }

    /// Sets the device type. `cpu` and `gpu` are changed to upper case; any other spelling is kept.
    #[must_use]
    pub fn with_device_type(mut self, device_type: &str) -> Self {
        self.device_type = Some(normalized(device_type));
        self
    }

    /// Sets the index among the devices of its type.
    #[must_use]
    pub fn with_device_index(mut self, index: i64) -> Self {
        self.device_index = Some(index);
        self
    }

    /// Parses a specification (`tf.DeviceSpec.from_string`). Pieces between slashes may be empty.
    /// If a job, replica or task occurs more than once, the last one counts. `plugged_in` lists
    /// further types, in upper case, that do not need `device:`.
    ///
    /// # Errors
    /// [`NameError::Spec`], with the invalid piece.
    pub fn parse(text: &str, plugged_in: &[&str]) -> Result<Self, NameError> {
        let refuse = |piece: &str, reason| NameError::Spec {
            spec: text.to_owned(),
            piece: piece.to_owned(),
            reason,
        };
        let mut spec = Self::default();
        let number = |(piece, digits): (&str, &str)| {
            python_int(digits).ok_or_else(|| refuse(piece, "a number of 64 bits is expected"))
        };
        // Kept as strings: only the last of several has to be a number.
        let (mut replica, mut task) = (None, None);
        for piece in text.split('/') {
            let index = |text: &str| match text {
                "*" => Ok(None),
                digits => number((piece, digits)).map(Some),
            };
            let fields: Vec<&str> = piece.split(':').collect();
            let short_type = fields[0].to_uppercase();
            let is_short =
                SHORT_TYPES.contains(&&*short_type) || plugged_in.contains(&&*short_type);
            let (device_type, device_index) = match fields[..] {
                ["job", job] => {
                    spec.job = Some(job.to_owned());
                    continue;
                }
                ["replica", digits] => {
                    replica = Some((piece, digits));
                    continue;
                }
                ["task", digits] => {
                    task = Some((piece, digits));
                    continue;
                }
                [_] if is_short => (short_type, None),
                [_, digits] if is_short => (short_type, index(digits)?),
                ["device", device_type, digits] => (normalized(device_type), index(digits)?),
                ["", ..] => continue,
                _ => {
                    return Err(refuse(
                        piece,
                        "`job:J`, `replica:R`, `task:T`, `device:TYPE:INDEX`, or a short type such as `cpu:0` is expected",
                    ));
                }
            };
            if spec.device_type.replace(device_type).is_some() {
                return Err(refuse(piece, "a second device type"));
            }
            // `*` does not unset an index that an earlier piece set.
            spec.device_index = device_index.or(spec.device_index);
        }
        spec.replica = replica.map(number).transpose()?;
        spec.task = task.map(number).transpose()?;
        Ok(spec)
    }

    /// Returns this specification with each component that `other` sets (`make_merged_spec`).
    /// Components are merged one by one, so an index may be combined with the type of the other
    /// specification.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        merged.merge_from(other);
        merged
    }

    /// Overwrites each component that `other` sets (`merge_from` of TensorFlow 1).
    pub fn merge_from(&mut self, other: &Self) {
        let Self {
            job,
            replica,
            task,
            device_type,
            device_index,
        } = other.clone();
        self.job = job.or(self.job.take());
        self.replica = replica.or(self.replica);
        self.task = task.or(self.task);
        self.device_type = device_type.or(self.device_type.take());
        self.device_index = device_index.or(self.device_index);
    }

    /// Returns whether nothing would be printed.
    pub fn is_empty(&self) -> bool {
        self.printed() == (None, None, None, None)
    }

    /// Returns the components that are printed: an index without a type is left out.
    #[expect(clippy::type_complexity, reason = "named right here, used right below")]
    fn printed(
        &self,
    ) -> (
        Option<&str>,
        Option<i64>,
        Option<i64>,
        Option<(&str, Option<i64>)>,
    ) {
        let device_type = self.device_type.as_deref();
        (
            self.job.as_deref(),
            self.replica,
            self.task,
            device_type.map(|device_type| (device_type, self.device_index)),
        )
    }
}

impl FromStr for DeviceSpec {
    type Err = NameError;

    /// Calls [`Self::parse`] without plugged-in types.
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text, &[])
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (job, replica, task, device) = self.printed();
        if let Some(job) = job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = task {
            write!(f, "/task:{task}")?;
        }
        match device {
            Some((device_type, Some(index))) => write!(f, "/device:{device_type}:{index}"),
            Some((device_type, None)) => write!(f, "/device:{device_type}:*"),
            None => Ok(()),
        }
    }
}

impl PartialEq for DeviceSpec {
    fn eq(&self, other: &Self) -> bool {
        self.printed() == other.printed()
    }
}

impl Hash for DeviceSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.printed().hash(state);
    }
}

/// Changes exactly these two spellings; `Cpu` is kept.
fn normalized(device_type: &str) -> String {
    match device_type {
        "cpu" | "gpu" => device_type.to_uppercase(),
        other => other.to_owned(),
    }
}

/// Parses a string like Python's `int()`: white space around it, a sign, decimal digits with single
/// underscores between them.
fn python_int(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_plain = |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    if !digits.split('_').all(is_plain) {
        return None;
    }
    let magnitude: i128 = digits.replace('_', "").parse().ok()?;
    let value = if text.starts_with('-') {
        -magnitude
    } else {
        magnitude
    };
    i64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_parse_as_in_python() {
        for (text, value) in [
            ("0", Some(0)),
            ("007", Some(7)),
            (" 12\t", Some(12)),
            ("+3", Some(3)),
            ("-3", Some(-3)),
            ("1_000", Some(1_000)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("+-1", None),
            ("- 1", None),
            ("_1", None),
            ("1_", None),
            ("1__0", None),
            ("0x10", None),
            ("1.0", None),
            ("*", None),
        ] {
            assert_eq!(python_int(text), value, "{text:?}");
        }
    }

    #[test]
    fn errors_name_the_specification_the_piece_and_the_expected_form() {
        let message = |text: &str| text.parse::<DeviceSpec>().unwrap_err().to_string();
        assert_eq!(
            message("/job:a/device:GPU"),
            "`/job:a/device:GPU` is not a device specification: `device:GPU`: `job:J`, `replica:R`, `task:T`, \
             `device:TYPE:INDEX`, or a short type such as `cpu:0` is expected"
        );
        assert!(message("/task:*").contains("`task:*`: a number of 64 bits is expected"));
        assert!(message("/cpu:0/gpu:0").contains("`gpu:0`: a second device type"));
    }

    #[test]
    fn plugged_in_types_need_no_device_prefix() {
        assert!("/sycl:0".parse::<DeviceSpec>().is_err());
        let spec = DeviceSpec::parse("/Sycl:0", &["SYCL"]).unwrap();
        assert_eq!(spec.to_string(), "/device:SYCL:0");
    }

    fn spec() -> impl Strategy<Value = DeviceSpec> {
        let small = || proptest::option::of(-2i64..3);
        (
            proptest::option::of("[a-z *]{0,3}"),
            small(),
            small(),
            proptest::option::of("[A-Za-z]{1,4}"),
            small(),
        )
            .prop_map(
                |(job, replica, task, device_type, device_index)| DeviceSpec {
                    job,
                    replica,
                    task,
                    device_type: device_type.as_deref().map(normalized),
                    device_index,
                },
            )
    }

    proptest! {
        #[test]
        fn printed_specifications_parse_back(spec in spec()) {
            prop_assert_eq!(&spec.to_string().parse::<DeviceSpec>().unwrap(), &spec);
        }

        #[test]
        fn merging_is_associative_and_the_last_one_wins(a in spec(), b in spec(), c in spec()) {
            prop_assert_eq!(a.merged(&b).merged(&c), a.merged(&b.merged(&c)));
            prop_assert_eq!(a.merged(&DeviceSpec::new()), a.clone());
            prop_assert_eq!(DeviceSpec::new().merged(&a), a.clone());
            prop_assert_eq!(a.merged(&a), a);
        }

        #[test]
        fn specifications_are_equal_if_they_print_the_same(a in spec(), b in spec()) {
            prop_assert_eq!(a == b, a.to_string() == b.to_string());
        }
    }
}
