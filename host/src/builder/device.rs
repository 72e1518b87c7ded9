//! Nested device scopes.

use crate::names::DeviceName;
use crate::names::NameError;

/// The device scopes that an operation stands in.
///
/// They are kept as they were entered and walked when an operation is added, from the innermost outwards: an entry may then
/// depend on the operation.
#[derive(Debug, Clone, Default)]
pub(super) struct DeviceStack(Vec<DeviceName>);

impl DeviceStack {
    /// The same with one more scope inside.
    pub(super) fn entered(&self, device: &str) -> Result<Self, NameError> {
        let mut stack = self.clone();
        stack.0.push(DeviceName::parse_full_or_local(device)?);
        Ok(stack)
    }

    /// What an operation in these scopes asks for: each part of the name is that of the innermost scope that sets it.
    pub(super) fn requested(&self) -> DeviceName {
        let mut requested = DeviceName::default();
        for scope in self.0.iter().rev() {
            requested.merge_unset(scope);
        }
        requested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_scopes_win_part_by_part() {
        // What TensorFlow 2.21 gives for the same nesting, outermost first.
        let rows: [(&[&str], &str); 9] = [
            (&[], ""),
            (&["/device:GPU:*"], "/device:GPU:*"),
            (
                &["/job:worker", "/device:GPU:0"],
                "/job:worker/device:GPU:0",
            ),
            (
                &["/device:GPU:0", "/job:worker"],
                "/job:worker/device:GPU:0",
            ),
            (
                &["/job:worker/device:CPU:0", "/job:ps/device:GPU:0"],
                "/job:ps/device:GPU:0",
            ),
            (&["/gpu:0", "/gpu:1"], "/device:GPU:1"),
            (
                &["/job:a/task:1", "/task:2", "/replica:3"],
                "/job:a/replica:3/task:2",
            ),
            (&["/gpu:0", ""], "/device:GPU:0"),
            (&["/"], ""),
        ];
        for (scopes, expected) in rows {
            let stack = scopes
                .iter()
                .try_fold(DeviceStack::default(), |stack, scope| stack.entered(scope));
            assert_eq!(
                stack.unwrap().requested().to_string(),
                expected,
                "{scopes:?}"
            );
        }
        assert!(DeviceStack::default().entered("/nonsense").is_err());
    }
}
