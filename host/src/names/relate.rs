//! Relations between device names, and merging.

use crate::names::name::{DeviceName, NameError};

/// What merging does if type or index differ. A difference in job, replica or task is always an
/// error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeMode {
    /// Returns an error.
    Hard,
    /// Unsets the part that differs and those after it.
    Soft,
    /// Takes the other name's value.
    Override,
}

impl DeviceName {
    /// Returns whether each part that is set here is set and equal in `name`. Used to find devices
    /// by a partial name; `name` is a device's full name.
    pub fn matches(&self, name: &Self) -> bool {
        name.is_specification_of(self)
    }

    /// Returns whether each part set in `less_specific` is set and equal here (TensorFlow
    /// `IsSpecification`).
    pub fn is_specification_of(&self, less_specific: &Self) -> bool {
        fn implied<T: PartialEq>(less: Option<&T>, more: Option<&T>) -> bool {
            less.is_none() || less == more
        }
        implied(less_specific.job.as_ref(), self.job.as_ref())
            && implied(less_specific.replica.as_ref(), self.replica.as_ref())
            && implied(less_specific.task.as_ref(), self.task.as_ref())
            && implied(
                less_specific.device_type.as_ref(),
                self.device_type.as_ref(),
            )
            && implied(less_specific.index.as_ref(), self.index.as_ref())
    }

    /// Returns whether no part is set on both sides with different values (TensorFlow
    /// `AreCompatibleDevNames`).
    pub fn is_compatible_with(&self, other: &Self) -> bool {
        !conflict(self.job.as_ref(), other.job.as_ref())
            && !conflict(self.replica.as_ref(), other.replica.as_ref())
            && !conflict(self.task.as_ref(), other.task.as_ref())
            && !conflict(self.device_type.as_ref(), other.device_type.as_ref())
            && !conflict(self.index.as_ref(), other.index.as_ref())
    }

    /// Returns whether job, replica and task are set on both sides and equal.
    pub fn is_same_address_space(&self, other: &Self) -> bool {
        let both = |set: bool, equal: bool| set && equal;
        both(self.job.is_some(), self.job == other.job)
            && both(self.replica.is_some(), self.replica == other.replica)
            && both(self.task.is_some(), self.task == other.task)
    }

    /// Returns whether job, replica or task is set on both sides and differs. This is not the
    /// negation of [`Self::is_same_address_space`]: if parts are unset, both are false.
    pub fn is_different_address_space(&self, other: &Self) -> bool {
        conflict(self.job.as_ref(), other.job.as_ref())
            || conflict(self.replica.as_ref(), other.replica.as_ref())
            || conflict(self.task.as_ref(), other.task.as_ref())
    }

    /// Overwrites every part that `less_specific` sets (TensorFlow `EnsureSpecification`).
    pub fn ensure_specification(&mut self, less_specific: &Self) {
        fn overwrite<T: Clone>(target: &mut Option<T>, other: &Option<T>) {
            if other.is_some() {
                target.clone_from(other);
            }
        }
        overwrite(&mut self.job, &less_specific.job);
        overwrite(&mut self.replica, &less_specific.replica);
        overwrite(&mut self.task, &less_specific.task);
        overwrite(&mut self.device_type, &less_specific.device_type);
        overwrite(&mut self.index, &less_specific.index);
    }

    /// Sets the parts that are unset here to those of `other`.
    pub fn merge_unset(&mut self, other: &Self) {
        fn fill<T: Clone>(target: &mut Option<T>, other: &Option<T>) {
            if target.is_none() {
                target.clone_from(other);
            }
        }
        fill(&mut self.job, &other.job);
        fill(&mut self.replica, &other.replica);
        fill(&mut self.task, &other.task);
        fill(&mut self.device_type, &other.device_type);
        fill(&mut self.index, &other.index);
    }

    /// Takes the parts that `other` sets; `mode` decides what happens if type or index differ
    /// (TensorFlow `MergeDevNames`). If the types differ, a soft merge unsets both type and index,
    /// whatever the indices are.
    ///
    /// # Errors
    /// [`NameError::Incompatible`], with both names; `self` is then unchanged.
    pub fn merge(&mut self, other: &Self, mode: MergeMode) -> Result<(), NameError> {
        let incompatible = |part| {
            Err(NameError::Incompatible {
                part,
                target: self.request_text(),
                other: other.request_text(),
            })
        };
        if conflict(self.job.as_ref(), other.job.as_ref()) {
            return incompatible("jobs");
        }
        if conflict(self.replica.as_ref(), other.replica.as_ref()) {
            return incompatible("replicas");
        }
        if conflict(self.task.as_ref(), other.task.as_ref()) {
            return incompatible("tasks");
        }
        let types_differ = conflict(self.device_type.as_ref(), other.device_type.as_ref());
        let indices_differ = conflict(self.index.as_ref(), other.index.as_ref());
        match mode {
            MergeMode::Hard if types_differ => return incompatible("types"),
            MergeMode::Hard if indices_differ => return incompatible("ids"),
            _ => {}
        }
        take(&mut self.job, other.job.as_ref());
        take(&mut self.replica, other.replica.as_ref());
        take(&mut self.task, other.task.as_ref());
        if types_differ && mode == MergeMode::Soft {
            self.device_type = None;
            self.index = None;
            return Ok(());
        }
        take(&mut self.device_type, other.device_type.as_ref());
        if indices_differ && mode == MergeMode::Soft {
            self.index = None;
        } else {
            take(&mut self.index, other.index.as_ref());
        }
        Ok(())
    }
}

fn conflict<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

fn take<T: Clone>(target: &mut Option<T>, other: Option<&T>) {
    if let Some(other) = other {
        *target = Some(other.clone());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse::tests::any_name_of;
    use super::*;

    fn name(text: &str) -> DeviceName {
        DeviceName::parse_full(text).unwrap()
    }

    fn merged(target: &str, other: &str, mode: MergeMode) -> Result<String, String> {
        let mut target = name(target);
        let before = target.clone();
        match target.merge(&name(other), mode) {
            Ok(()) => Ok(target.to_string()),
            Err(error) => {
                assert_eq!(target, before, "a failed merge changes nothing");
                Err(error.to_string())
            }
        }
    }

    #[test]
    fn merging_types() {
        assert_eq!(
            merged("/gpu:1", "/cpu:1", MergeMode::Soft).as_deref(),
            Ok("")
        );
        assert_eq!(
            merged("/gpu:1", "/gpu:2", MergeMode::Soft).as_deref(),
            Ok("/device:GPU:*")
        );
        assert_eq!(
            merged("/job:a/gpu:0", "/cpu:1", MergeMode::Override).as_deref(),
            Ok("/job:a/device:CPU:1")
        );
        let error = merged("/gpu:*", "/task:1/cpu:*", MergeMode::Hard).unwrap_err();
        assert!(error.contains("incompatible types"), "{error}");
        assert!(error.contains("`/device:GPU:*`"), "{error}");
    }

    #[test]
    fn different_jobs_never_merge() {
        for mode in [MergeMode::Hard, MergeMode::Soft, MergeMode::Override] {
            assert!(merged("/job:a", "/job:b", mode).is_err(), "{mode:?}");
        }
    }

    #[test]
    fn relations() {
        assert!(name("/gpu:0").is_compatible_with(&name("/job:a")));
        assert!(!name("/gpu:0").is_compatible_with(&name("/gpu:1")));
        let (a, b) = (name("/job:a/task:2"), name("/job:a/task:2"));
        assert!(!a.is_same_address_space(&b) && !a.is_different_address_space(&b));
        assert!(name("/job:a/gpu:1").is_specification_of(&name("/gpu:*")));
        assert!(!name("/gpu:*").is_specification_of(&name("/job:a/gpu:1")));
    }

    #[test]
    fn filling_and_overwriting() {
        let mut filled = name("/job:a/gpu:0");
        filled.merge_unset(&name("/job:b/task:1/cpu:1"));
        assert_eq!(filled, name("/job:a/task:1/gpu:0"));
        filled.ensure_specification(&name("/cpu:1"));
        assert_eq!(filled, name("/job:a/task:1/cpu:1"));
    }

    /// Names of few values, so that two of them often agree and often differ.
    fn any_name() -> impl Strategy<Value = DeviceName> {
        any_name_of(prop::sample::select(vec!["a", "b"]), 0u32..2)
    }

    fn merge(target: &DeviceName, other: &DeviceName, mode: MergeMode) -> Option<DeviceName> {
        let mut target = target.clone();
        target.merge(other, mode).ok().map(|()| target)
    }

    const MODES: [MergeMode; 3] = [MergeMode::Hard, MergeMode::Soft, MergeMode::Override];

    proptest! {
        #[test]
        fn merging_with_itself_or_with_nothing_changes_nothing(a in any_name()) {
            for mode in MODES {
                prop_assert_eq!(merge(&a, &a, mode), Some(a.clone()));
                prop_assert_eq!(merge(&a, &DeviceName::default(), mode), Some(a.clone()));
                prop_assert_eq!(merge(&DeviceName::default(), &a, mode), Some(a.clone()));
            }
        }

        #[test]
        fn hard_merges_commute_and_specify_both(a in any_name(), b in any_name()) {
            let merged = merge(&a, &b, MergeMode::Hard);
            prop_assert_eq!(&merged, &merge(&b, &a, MergeMode::Hard));
            prop_assert_eq!(merged.is_some(), a.is_compatible_with(&b));
            if let Some(merged) = merged {
                prop_assert!(merged.is_specification_of(&a) && merged.is_specification_of(&b));
                // The merge sets nothing that neither name sets: it is the least such name.
                let mut filled = a.clone();
                filled.merge_unset(&b);
                prop_assert_eq!(&merged, &filled);
                // Without a conflict, all modes give the same result.
                prop_assert_eq!(merge(&a, &b, MergeMode::Soft), Some(merged.clone()));
                prop_assert_eq!(merge(&a, &b, MergeMode::Override), Some(merged));
            }
        }

        #[test]
        fn hard_merges_are_associative(a in any_name(), b in any_name(), c in any_name()) {
            let left = merge(&a, &b, MergeMode::Hard).and_then(|ab| merge(&ab, &c, MergeMode::Hard));
            let right = merge(&b, &c, MergeMode::Hard).and_then(|bc| merge(&a, &bc, MergeMode::Hard));
            prop_assert_eq!(left, right);
        }

        #[test]
        fn soft_merges_commute_and_never_invent(a in any_name(), b in any_name()) {
            let merged = merge(&a, &b, MergeMode::Soft);
            prop_assert_eq!(&merged, &merge(&b, &a, MergeMode::Soft));
            // A soft merge fails only if the address spaces differ.
            prop_assert_eq!(merged.is_none(), a.is_different_address_space(&b));
            if let Some(merged) = merged {
                let types_differ = a.device_type.is_some()
                    && b.device_type.is_some()
                    && a.device_type != b.device_type;
                if types_differ {
                    prop_assert_eq!((&merged.device_type, merged.index), (&None, None));
                }
                prop_assert!(merged.job.is_none() || merged.job == a.job || merged.job == b.job);
                prop_assert!(
                    merged.index.is_none() || merged.index == a.index || merged.index == b.index
                );
            }
        }

        #[test]
        fn overriding_takes_every_part_of_the_other(a in any_name(), b in any_name()) {
            let merged = merge(&a, &b, MergeMode::Override);
            prop_assert_eq!(merged.is_none(), a.is_different_address_space(&b));
            if let Some(merged) = merged {
                let mut expected = a.clone();
                expected.ensure_specification(&b);
                prop_assert_eq!(&merged, &expected);
                prop_assert!(merged.is_specification_of(&b));
                prop_assert_eq!(merge(&merged, &b, MergeMode::Override), Some(merged.clone()));
            }
        }

        #[test]
        fn specification_is_a_partial_order(a in any_name(), b in any_name(), c in any_name()) {
            prop_assert!(a.is_specification_of(&a));
            prop_assert!(a.is_specification_of(&DeviceName::default()));
            if a.is_specification_of(&b) && b.is_specification_of(&a) {
                prop_assert_eq!(&a, &b);
            }
            if a.is_specification_of(&b) && b.is_specification_of(&c) {
                prop_assert!(a.is_specification_of(&c));
            }
            prop_assert_eq!(b.matches(&a), a.is_specification_of(&b));
        }

        #[test]
        fn compatibility_is_symmetric_and_follows_from_specification(a in any_name(), b in any_name()) {
            prop_assert_eq!(a.is_compatible_with(&b), b.is_compatible_with(&a));
            if a.is_specification_of(&b) {
                prop_assert!(a.is_compatible_with(&b));
            }
            prop_assert_eq!(a.is_same_address_space(&b), b.is_same_address_space(&a));
            prop_assert!(!(a.is_same_address_space(&b) && a.is_different_address_space(&b)));
        }

        #[test]
        fn filling_keeps_what_is_set(a in any_name(), b in any_name()) {
            let mut filled = a.clone();
            filled.merge_unset(&b);
            prop_assert!(filled.is_specification_of(&a));
            let mut overwritten = b.clone();
            overwritten.ensure_specification(&a);
            prop_assert_eq!(filled, overwritten, "filling `a` from `b` is overwriting `b` with `a`");
        }
    }
}
