"""From a folder, a file, arrays or a benchmark's name to one tensor of images."""
