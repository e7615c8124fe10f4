"""The papers' own algorithms, as printed, where Colonnade has something better or safer. A party runs them only if its
configuration names this package: packages = ["colonnade.papers"]."""
