"""What every package uses: errors, arrays, streams, files, row stores."""
