"""A text that does harm unless it is escaped."""

HOSTILE = "kernel.c:3: error: </script><script>alert(1)</script><img src=x onerror=alert(2)> | `` ` & \x1b[31m"
