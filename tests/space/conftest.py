"""The helpers of these tests are found beside them."""
