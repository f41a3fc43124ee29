"""A text that does harm wherever it is not escaped."""

HOSTILE = "kernel.c:3: error: </script><script>alert(1)</script><img src=x onerror=alert(2)> | `` ` & \x1b[31m"
