from opdkit.cli import main

main()
