"""Check digits of numbers that are given to people: payment cards, bank accounts, Chinese identity cards.

Of random digits one in ten passes as a card number and one in 97 as an IBAN, so each stands behind a pattern.
"""

_CHINESE_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def is_card(text: str) -> bool:
    """Return whether Luhn's check digit holds (ISO/IEC 7812-1), and whether it is more than one digit repeated.

    Every second digit from the right is doubled, and the sum of all digits ends in 0.
    """
    digits = [int(digit) for digit in text if digit.isdecimal()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """Return whether the check digits hold (ISO 13616): with its first four characters last, it is 1 modulo 97."""
    compact = "".join(text.split()).upper()
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def is_chinese_id(text: str) -> bool:
    """Return whether the last of 18 characters is the check digit of the others (GB 11643, ISO 7064 MOD 11-2)."""
    weighted = zip(text, _CHINESE_WEIGHTS, strict=False)
    return "10X98765432"[sum(int(digit) * weight for digit, weight in weighted) % 11] == text[-1].upper()
