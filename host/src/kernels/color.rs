//! Colours of pixels.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "TensorFlow's arithmetic: the sector of a hue is a small whole number"
)]

/// Returns hue (0 to 6), smallest and largest component of a colour.
fn hue_and_range([r, g, b]: [f32; 3]) -> [f32; 3] {
    let (lowest, middle, highest, sector) = if r < g {
        if b < r {
            (b, r, g, 1)
        } else if b > g {
            (r, g, b, 3)
        } else {
            (r, b, g, 2)
        }
    } else if b < g {
        (b, g, r, 0)
    } else if b > r {
        (g, r, b, 4)
    } else {
        (g, b, r, 5)
    };
    if highest == lowest {
        return [0.0, lowest, highest];
    }
    let ratio = (middle - lowest) / (highest - lowest);
    let within = if sector % 2 == 0 { ratio } else { 1.0 - ratio };
    [sector as f32 + within, lowest, highest]
}

/// Rotates the hue of a colour by `delta` turns (TensorFlow `AdjustHue`).
pub fn adjust_hue(pixel: [f32; 3], delta: f32) -> [f32; 3] {
    let [hue, lowest, highest] = hue_and_range(pixel);
    let mut hue = (hue + delta * 6.0) % 6.0;
    if hue < 0.0 {
        hue += 6.0;
    }
    // A tiny negative number becomes 6.
    if hue >= 6.0 {
        hue -= 6.0;
    }
    let sector = hue as usize;
    let within = hue - sector as f32;
    let ratio = if sector.is_multiple_of(2) {
        within
    } else {
        1.0 - within
    };
    let middle = lowest + ratio * (highest - lowest);
    match sector {
        0 => [highest, middle, lowest],
        1 => [middle, highest, lowest],
        2 => [lowest, highest, middle],
        3 => [lowest, middle, highest],
        4 => [middle, lowest, highest],
        _ => [highest, lowest, middle],
    }
}

/// Returns hue (0 to 1), saturation and value of a colour (TensorFlow `RGBToHSV`).
pub fn rgb_to_hsv([r, g, b]: [f64; 3]) -> [f64; 3] {
    let value = r.max(g).max(b);
    let range = value - r.min(g).min(b);
    let saturation = if value > 0.0 { range / value } else { 0.0 };
    let unit = 1.0 / (6.0 * range);
    let hue = if range <= 0.0 {
        0.0
    } else if r == value {
        unit * (g - b)
    } else if g == value {
        unit * (b - r) + 2.0 / 6.0
    } else {
        unit * (r - g) + 4.0 / 6.0
    };
    [if hue < 0.0 { hue + 1.0 } else { hue }, saturation, value]
}

/// Returns the colour of this hue, saturation and value (TensorFlow `HSVToRGB`).
pub fn hsv_to_rgb([hue, saturation, value]: [f64; 3]) -> [f64; 3] {
    let sixths = hue * 6.0;
    let full = [
        (sixths - 3.0).abs() - 1.0,
        2.0 - (sixths - 2.0).abs(),
        2.0 - (sixths - 4.0).abs(),
    ];
    full.map(|full| (1.0 - saturation + saturation * full.clamp(0.0, 1.0)) * value)
}

/// Multiplies the saturation of a colour, which stays in 0 to 1 (TensorFlow `AdjustSaturation`).
pub fn adjust_saturation(pixel: [f32; 3], scale: f32) -> [f32; 3] {
    let [hue, saturation, value] = rgb_to_hsv(pixel.map(f64::from));
    let saturation = (saturation * f64::from(scale)).clamp(0.0, 1.0);
    hsv_to_rgb([hue, saturation, value]).map(|component| component as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hue_is_rotated_by_thirds() {
        assert_eq!(adjust_hue([1.0, 0.0, 0.0], 1.0 / 3.0), [0.0, 1.0, 0.0]);
        assert_eq!(adjust_hue([0.5; 3], 0.3), [0.5; 3]);
        assert_eq!(rgb_to_hsv([0.0, 0.0, 0.5]), [4.0 / 6.0, 1.0, 0.5]);
        assert_eq!(hsv_to_rgb([0.0, 1.0, 0.5]), [0.5, 0.0, 0.0]);
    }
}
