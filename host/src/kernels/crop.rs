//! Boxes of an image that are taken by chance, as TensorFlow takes them (Szegedy et al. 2015).

use crate::kernels::philox::Singles;
use crate::kernels::philox::unit_f32;

/// A box of whole pixels: first row and column, and those behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelBox {
    /// First row.
    pub top: i32,
    /// First column.
    pub left: i32,
    /// The row behind the last.
    pub bottom: i32,
    /// The column behind the last.
    pub right: i32,
}

impl PixelBox {
    #[expect(clippy::cast_precision_loss, reason = "as TensorFlow")]
    fn area(&self) -> f32 {
        let [height, width] = [self.bottom - self.top, self.right - self.left];
        match height > 0 && width > 0 {
            true => height.saturating_mul(width) as f32,
            false => 0.0,
        }
    }

    fn intersection(&self, other: &Self) -> Self {
        Self {
            top: self.top.max(other.top),
            left: self.left.max(other.left),
            bottom: self.bottom.min(other.bottom),
            right: self.right.min(other.right),
        }
    }
}

/// What is asked of a box.
#[derive(Debug, Clone, Copy)]
pub struct CropRules {
    /// Least and largest part of the image.
    pub area: [f32; 2],
    /// Least and largest ratio of width and height.
    pub aspect: [f32; 2],
    /// Least part of one of the objects.
    pub covered: f32,
    /// How often a box is tried; then it is the whole image.
    pub n_attempts: u32,
}

impl CropRules {
    /// Takes a box of an image of this height and width.
    pub fn sample(
        &self,
        [height, width]: [i32; 2],
        objects: &[PixelBox],
        numbers: &mut Singles,
    ) -> PixelBox {
        for _ in 0..self.n_attempts {
            let [least, largest] = self.aspect;
            let aspect = unit_f32(numbers.number()) * (largest - least) + least;
            if let Some(found) = self.crop([height, width], aspect, numbers)
                && self.covers(&found, objects)
            {
                return found;
            }
        }
        PixelBox {
            top: 0,
            left: 0,
            bottom: height,
            right: width,
        }
    }

    fn covers(&self, found: &PixelBox, objects: &[PixelBox]) -> bool {
        found.area() >= 1.0
            && objects.iter().any(|object| {
                let area = object.area();
                area >= 1.0 && found.intersection(object).area() / area >= self.covered
            })
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "TensorFlow's arithmetic, in single precision"
    )]
    fn crop(
        &self,
        [rows, columns]: [i32; 2],
        aspect: f32,
        numbers: &mut Singles,
    ) -> Option<PixelBox> {
        let [least, largest] = self.area;
        if largest <= 0.0 || aspect <= 0.0 || rows <= 0 || columns <= 0 || least > largest {
            return None;
        }
        let rounded = |x: f32| x.round_ties_even() as i32;
        let area_min = least * columns as f32 * rows as f32;
        let area_max = largest * columns as f32 * rows as f32;
        let mut height = rounded((area_min / aspect).sqrt());
        let mut height_max = rounded((area_max / aspect).sqrt());
        if rounded(height_max as f32 * aspect) > columns {
            const EPSILON: f32 = 0.000_000_1;
            height_max =
                ((f64::from(columns) + 0.5 - f64::from(EPSILON)) / f64::from(aspect)) as i32;
        }
        height_max = height_max.min(rows);
        height = height.min(height_max);
        if height < height_max {
            height += below(height_max - height + 1, numbers);
        }
        let mut width = rounded(height as f32 * aspect);
        let mut area = width.saturating_mul(height) as f32;
        // Rounding must not make the area too small or too large.
        if area < area_min {
            height += 1;
            width = rounded(height as f32 * aspect);
            area = width.saturating_mul(height) as f32;
        }
        if area > area_max {
            height -= 1;
            width = rounded(height as f32 * aspect);
            area = width.saturating_mul(height) as f32;
        }
        let fits = (area_min..=area_max).contains(&area)
            && (1..=columns).contains(&width)
            && (1..=rows).contains(&height);
        if !fits {
            return None;
        }
        let mut offset = |size: i32, whole: i32| match size < whole {
            true => below(whole - size, numbers),
            false => 0,
        };
        let top = offset(height, rows);
        let left = offset(width, columns);
        Some(PixelBox {
            top,
            left,
            bottom: top + height,
            right: left + width,
        })
    }
}

/// Returns a number from 0 to `n - 1`, each as likely as the others.
fn below(n: i32, numbers: &mut Singles) -> i32 {
    let n = n.unsigned_abs();
    let number = if n.is_power_of_two() {
        numbers.number() & (n - 1)
    } else {
        // The first numbers would make some results more likely.
        let n_rejected = u32::MAX % n.max(1) + 1;
        let mut number = numbers.number();
        while number < n_rejected {
            number = numbers.number();
        }
        number % n.max(1)
    };
    i32::try_from(number).unwrap_or(0)
}
